// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
)

// Revoke implements wire.AdminServer. It stores a revocation of certificates, or deletes it if the
// request says undo.
func (s *Service) Revoke(ctx context.Context, r *wire.RevokeRequest) (*wire.RevokeReply, error) {
	now := time.Now()
	revocation := &wire.Revocation{Serial: serialText(r.GetSerial()), RevokedS: now.Unix(), By: caller(ctx)}
	switch role, err := pki.ParseRole(r.GetRole()); {
	case (r.GetSerial() == "") == (r.GetRole() == "" && r.GetName() == ""):
		return nil, status.Error(codes.InvalidArgument, "expected a serial number, or a role and a name")
	case r.GetSerial() != "":
	case err != nil:
		return nil, status.Error(codes.InvalidArgument, err.Error())
	case role == pki.Central:
		return nil, status.Error(codes.InvalidArgument, "a central's certificate cannot be revoked: a central has the CA's key; make a new CA")
	default:
		revocation.Role, revocation.Name = r.GetRole(), r.GetName()
		revocation.ValidSinceS = pki.RevokedBefore(now, s.CA != nil).Unix()
	}
	change := s.Store.Revoke
	if r.GetUndo() {
		change = s.Store.Unrevoke
	}
	if err := change(ctx, revocation); err != nil {
		return nil, failure(err)
	}
	s.Log.Info("revocation", "by", caller(ctx), "serial", revocation.GetSerial(), "role", revocation.GetRole(), "name", revocation.GetName(), "undo", r.GetUndo())
	return &wire.RevokeReply{Revocation: revocation}, nil
}

// serialText returns a serial number in the form that pki prints: lower-case
// hexadecimal digits without leading zeros. It removes colons and 0x, which other tools
// print.
func serialText(s string) string {
	s = strings.TrimPrefix(strings.ToLower(strings.ReplaceAll(s, ":", "")), "0x")
	if digits := strings.TrimLeft(s, "0"); digits != "" {
		return digits
	}
	return s
}

// Revocations implements wire.AdminServer. It lists all revocations in the store.
func (s *Service) Revocations(ctx context.Context, _ *wire.RevocationsRequest) (*wire.RevocationsReply, error) {
	_, objects, err := s.Store.Objects(ctx, store.KindRevocation)
	if err != nil {
		return nil, failure(err)
	}
	reply := &wire.RevocationsReply{}
	for _, o := range objects {
		if r, ok := o.Message.(*wire.Revocation); ok {
			reply.Revocations = append(reply.Revocations, r)
		}
	}
	return reply, nil
}
