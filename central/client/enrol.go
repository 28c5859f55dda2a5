// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"weft/central/pki"
	"weft/central/wire"
)

// Invite returns a token for one certificate with this role and name. lifetime is the time for which
// the token is valid; 0 means an hour.
func (c *Client) Invite(ctx context.Context, role, name string, lifetime time.Duration) (token string, err error) {
	err = c.ask(ctx, func(ctx context.Context, a wire.AdminClient) error {
		r, err := a.Invite(ctx, &wire.InviteRequest{Role: role, Name: name, ValidS: uint32(lifetime / time.Second)})
		token = r.GetToken()
		return err
	})
	return token, err
}

// Revoke revokes the certificate with a serial number, or all certificates with a role and name.
func (c *Client) Revoke(ctx context.Context, r *wire.RevokeRequest) (revoked *wire.Revocation, err error) {
	err = c.ask(ctx, func(ctx context.Context, a wire.AdminClient) error {
		reply, err := a.Revoke(ctx, r)
		revoked = reply.GetRevocation()
		return err
	})
	return revoked, err
}

// Revocations lists all revocations.
func (c *Client) Revocations(ctx context.Context) (list []*wire.Revocation, err error) {
	err = c.ask(ctx, func(ctx context.Context, a wire.AdminClient) error {
		reply, err := a.Revocations(ctx, &wire.RevocationsRequest{})
		list = reply.GetRevocations()
		return err
	})
	return list, err
}

// Enrol sends a token to a central and gets a certificate. It saves the certificate, its new key and
// the CA's certificate in files, and returns the name in the certificate. A token works only once, even
// if the answer is lost.
func Enrol(ctx context.Context, addresses []string, text string, files pki.Files) (name string, err error) {
	token, err := pki.ParseToken(text)
	if err != nil {
		return "", err
	}
	key, csr, err := pki.NewKey()
	if err != nil {
		return "", err
	}
	var got *wire.Enrolled
	err = enrolment(ctx, addresses, credentials.NewTLS(token.Enrol()), func(ctx context.Context, e wire.EnrolmentClient) error {
		got, err = e.Enrol(ctx, &wire.EnrolRequest{Token: text, Csr: csr})
		return err
	})
	if err != nil {
		return "", err
	}
	return got.GetName(), files.Save(got.GetCertificate(), key, got.GetCa())
}

// Renew replaces the certificate and the key in the files of keys by new ones.
func Renew(ctx context.Context, addresses []string, keys *pki.Keys) error {
	return keys.Renew(nil, func(csr []byte) (cert, ca []byte, err error) {
		err = enrolment(ctx, addresses, credentials.NewTLS(keys.Client()), func(ctx context.Context, e wire.EnrolmentClient) error {
			got, err := e.Renew(ctx, &wire.EnrolRequest{Csr: csr})
			cert, ca = got.GetCertificate(), got.GetCa()
			return err
		})
		if err == nil && len(cert) == 0 {
			err = fmt.Errorf("central answers without a certificate")
		}
		return cert, ca, err
	})
}

func enrolment(ctx context.Context, addresses []string, creds credentials.TransportCredentials, f func(context.Context, wire.EnrolmentClient) error) error {
	c, err := New(addresses, creds)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := context.WithTimeout(ctx, 2*answerTimeout)
	defer stop()
	return c.eachConn(ctx, answerTimeout, func(ctx context.Context, conn *grpc.ClientConn) error {
		return f(ctx, wire.NewEnrolmentClient(conn))
	})
}
