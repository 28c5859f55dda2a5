// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto/x509"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"weft/central/pki"
	"weft/central/wire"
)

// anybody is the role of a caller without a certificate.
const anybody pki.Role = ""

// mayCall maps each method to the roles that may call it. Nobody may call a method that
// is not in the map.
var mayCall = map[string][]pki.Role{
	wire.Hub_Follow_FullMethodName:        {pki.Host},
	wire.Peer_Sync_FullMethodName:         {pki.Central},
	wire.Peer_Sessions_FullMethodName:     {pki.Central},
	wire.Peer_Waiting_FullMethodName:      {pki.Central},
	wire.Admin_Apply_FullMethodName:       {pki.Admin},
	wire.Admin_List_FullMethodName:        {pki.Admin, pki.Reader},
	wire.Admin_Sync_FullMethodName:        {pki.Admin, pki.Reader},
	wire.Admin_Why_FullMethodName:         {pki.Admin, pki.Reader},
	wire.Admin_Status_FullMethodName:      {pki.Admin, pki.Reader},
	wire.Admin_Save_FullMethodName:        {pki.Admin},
	wire.Admin_Invite_FullMethodName:      {pki.Admin},
	wire.Admin_Revoke_FullMethodName:      {pki.Admin},
	wire.Admin_Revocations_FullMethodName: {pki.Admin, pki.Reader},
	wire.Enrolment_Enrol_FullMethodName:   {anybody, pki.Host, pki.Central, pki.Admin, pki.Reader},
	wire.Enrolment_Renew_FullMethodName:   {pki.Host, pki.Central, pki.Admin, pki.Reader},
}

// certificate returns the certificate of the caller, which TLS has verified, or nil.
func certificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	t, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(t.State.VerifiedChains) == 0 {
		return nil
	}
	return t.State.VerifiedChains[0][0]
}

// Identify returns the name and the role in the certificate of the caller, which TLS
// has verified. Without a certificate, both are empty.
func Identify(ctx context.Context) (name string, role pki.Role, err error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "", "", errors.New("a call without a peer")
	}
	if _, ok := p.AuthInfo.(credentials.TLSInfo); !ok {
		return "", "", errors.New("a call without TLS")
	}
	cert := certificate(ctx)
	if cert == nil {
		return "", anybody, nil
	}
	return pki.Identity(cert)
}

// IdentifyHost returns the name in the certificate of the calling host. It returns an
// error if the caller's role is not host. The hub uses it.
func IdentifyHost(ctx context.Context) (string, error) {
	name, role, err := Identify(ctx)
	if err == nil && role != pki.Host {
		err = errors.New("the certificate is no host's")
	}
	return name, err
}

// caller returns the caller's role and name for the log.
func caller(ctx context.Context) string {
	name, role, err := Identify(ctx)
	if err != nil {
		return "unknown"
	}
	return string(role) + " " + name
}

func authorize(ctx context.Context, method string) error {
	name, role, err := Identify(ctx)
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	if slices.Contains(mayCall[method], role) {
		return nil
	}
	if role == anybody {
		return status.Errorf(codes.Unauthenticated, "%s needs a certificate; enrol with a token first", method)
	}
	return status.Errorf(codes.PermissionDenied, "%s may not be called by %s, whose role is %s; expected one of %v", method, name, role, mayCall[method])
}
