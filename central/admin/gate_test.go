// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"crypto/x509"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"weft/central/pki"
	"weft/central/wire"
	"weft/internal/waitfor"
)

// A host with a revoked certificate is refused: its running session ends, it gets no
// new session, and it cannot renew the certificate. Another certificate with the same
// name works.
func TestRevokedHost(t *testing.T) {
	f := startFleet(t)
	people := wire.NewAdminClient(f.dialAs("root", pki.Admin))
	set := &wire.Change{Change: &wire.Change_SetHost{SetHost: &wire.Host{Id: "h1", Name: "h1", Endpoint: []byte{192, 0, 2, 1}}}}
	if _, err := people.Apply(t.Context(), &wire.ChangeRequest{Changes: []*wire.Change{set}}); err != nil {
		t.Fatal(err)
	}
	keys := f.keys("h1", pki.Host)
	conn := f.dial(credentials.NewTLS(keys.Client()))
	follow := func() (wire.Hub_FollowClient, error) {
		stream, err := wire.NewHubClient(conn).Follow(t.Context())
		if err == nil {
			_ = stream.Send(&wire.FromHost{Message: &wire.FromHost_Hello{Hello: &wire.Hello{}}}) // Recv returns the reason of an error
			_, err = stream.Recv()
		}
		return stream, err
	}
	var stream wire.Hub_FollowClient
	waitfor.True(t, "the host is known", func() (ok bool) {
		var err error
		stream, err = follow()
		return err == nil
	})
	for _, by := range []*wire.RevokeRequest{
		{Serial: "0x" + keys.Certificate().SerialNumber.Text(16)},
		{Role: "host", Name: "h1"},
	} {
		if _, err := people.Revoke(t.Context(), by); err != nil {
			t.Fatal(err)
		}
		var err error
		for err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v: the session ends with %v", by, err)
		}
		if _, err := follow(); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v: a new session: %v", by, err)
		}
		_, csr, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := wire.NewEnrolmentClient(conn).Renew(t.Context(), &wire.EnrolRequest{Csr: csr}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%v: renewal: %v", by, err)
		}
		if s := f.gate.Stats(); s.Revocations != 1 || s.Refused == 0 || s.Ended == 0 {
			t.Errorf("%v: %+v", by, s)
		}
		by.Undo = true
		if _, err := people.Revoke(t.Context(), by); err != nil {
			t.Fatal(err)
		}
		waitfor.True(t, "the revocation is undone", func() (ok bool) {
			var err error
			stream, err = follow()
			return err == nil
		})
	}
}

// A revocation by name applies to all certificates of the name that were issued before
// the revocation, and to their renewals.
func TestRevocationByNameLetsLaterCertificatesThrough(t *testing.T) {
	f := startFleet(t)
	old := f.keys("h1", pki.Host)
	now := time.Now()
	r := &wire.Revocation{Role: "host", Name: "h1", ValidSinceS: pki.RevokedBefore(now, true).Unix()}
	if err := f.store.Revoke(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "the revocation is known", func() bool { return f.gate.Stats().Revocations == 1 })
	_, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	renewed, err := f.ca.Renew(csr, old.Certificate(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for time.Since(now) < time.Second+time.Second/10 { // certificates have whole seconds
		time.Sleep(time.Second / 10)
	}
	later, err := f.ca.Sign(csr, "h1", pki.Host, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		der     []byte
		refused bool
	}{"old": {old.Certificate().Raw, true}, "renewed": {renewed, true}, "later": {later, false}} {
		if err := f.refuses(c.der); (err != nil) != c.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func (f *fleet) refuses(der []byte) error {
	f.t.Helper()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		f.t.Fatal(err)
	}
	f.gate.mu.Lock()
	defer f.gate.mu.Unlock()
	return f.gate.check(cert)
}
