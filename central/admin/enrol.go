// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto/x509"
	"net/url"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
)

var errNoCA = status.Error(codes.FailedPrecondition, "this central has no key of a CA; get certificates from the site's CA")

// Invite implements wire.AdminServer. It stores only a digest of the token's secret, so
// that somebody who reads the store cannot enrol.
func (s *Service) Invite(ctx context.Context, r *wire.InviteRequest) (*wire.Invitation, error) {
	if s.CA == nil {
		return nil, errNoCA
	}
	if _, err := pki.ParseRole(r.GetRole()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	valid := validity(r)
	if valid > maxInvite {
		return nil, status.Errorf(codes.InvalidArgument, "valid for %s: expected at most %s", valid, maxInvite)
	}
	token := pki.NewToken(s.CA.Digest())
	if err := s.Store.Invite(ctx, token.ID(), r, valid); err != nil {
		return nil, failure(err)
	}
	s.Log.Info("invited", "by", caller(ctx), "role", r.GetRole(), "name", r.GetName(), "valid", valid)
	return &wire.Invitation{Token: token.Text()}, nil
}

// validity returns the lifetime of an invitation's token.
func validity(r *wire.InviteRequest) time.Duration {
	if r.GetValidS() == 0 {
		return defaultInvite
	}
	return time.Duration(r.GetValidS()) * time.Second
}

// enrolment implements the service Enrolment.
type enrolment struct {
	wire.UnimplementedEnrolmentServer
	s *Service
}

// Enrol implements wire.EnrolmentServer. It exchanges a token, which it uses up, for a certificate.
func (e *enrolment) Enrol(ctx context.Context, r *wire.EnrolRequest) (*wire.Enrolled, error) {
	s := e.s
	if s.CA == nil {
		return nil, errNoCA
	}
	token, err := pki.ParseToken(r.GetToken())
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if _, err := x509.ParseCertificateRequest(r.GetCsr()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the request for a certificate: %v", err)
	}
	invitation, err := s.Store.TakeInvitation(ctx, token.ID())
	if err != nil {
		return nil, failure(err)
	}
	name, role := invitation.GetName(), pki.Role(invitation.GetRole())
	reply := &wire.Enrolled{Ca: s.CA.DER(), Name: name}
	if reply.Certificate, err = s.CA.Sign(r.GetCsr(), name, role, pki.DefaultLife); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if role == pki.Central {
		if err := s.addCentral(ctx, name, r.GetPeer(), reply); err != nil {
			s.giveBack(ctx, token.ID(), invitation)
			return nil, failure(err)
		}
	}
	s.Log.Info("enrolled", "role", role, "name", name, "serial", serialOf(reply.Certificate))
	return reply, nil
}

// giveBack makes the token of a new central valid again, for its whole lifetime, because the central
// could not be added to the cluster.
func (s *Service) giveBack(ctx context.Context, id string, invitation *wire.InviteRequest) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBackTimeout)
	defer cancel()
	if err := s.Store.Invite(ctx, id, invitation, validity(invitation)); err != nil {
		s.Log.Warn("a token of a central that could not join is used up", "name", invitation.GetName(), "error", err)
	}
}

// addTimeout limits how long a new central waits until the central that joined before it has a vote in
// etcd.
const addTimeout = time.Minute

// giveBackTimeout limits the write that makes a token valid again. The write does not use the caller's
// context, which may have ended.
const giveBackTimeout = 5 * time.Second

// serialOf returns the serial number of a certificate in the form that Revoke accepts.
func serialOf(der []byte) string {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return ""
	}
	return cert.SerialNumber.Text(16)
}

// addCentral completes the reply to a new central with the CA's key. If etcd is embedded, it also adds
// the new central to the members of etcd.
func (s *Service) addCentral(ctx context.Context, name, peer string, reply *wire.Enrolled) (err error) {
	if reply.CaKey, err = s.CA.Key(); err != nil || !s.Members {
		return err
	}
	u, err := url.Parse(peer)
	if err != nil || u.Scheme != "https" || u.Port() == "" || u.Path != "" {
		return &store.Refused{Why: "the address of the new member of etcd is wrong; expected one like https://10.0.0.2:7701"}
	}
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	reply.Cluster, err = s.Store.AddMember(ctx, name, peer)
	return err
}

// Renew implements wire.EnrolmentServer. The new certificate has the name and the
// role of the caller's certificate.
func (e *enrolment) Renew(ctx context.Context, r *wire.EnrolRequest) (*wire.Enrolled, error) {
	s := e.s
	if s.CA == nil {
		return nil, errNoCA
	}
	old := certificate(ctx)
	if old == nil {
		return nil, status.Error(codes.Unauthenticated, "renewal needs the present certificate; enrol with a token")
	}
	name, role, err := pki.Identity(old)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	cert, err := s.CA.Renew(r.GetCsr(), old, pki.DefaultLife)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	s.Log.Info("renewed a certificate", "role", role, "name", name, "serial", serialOf(cert))
	return &wire.Enrolled{Certificate: cert, Ca: s.CA.DER(), Name: name}, nil
}
