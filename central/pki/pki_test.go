// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func testCA(t *testing.T) *CA {
	t.Helper()
	ca, err := NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// holder issues a certificate, saves it in files and returns the keys that use these files.
func holder(t *testing.T, ca *CA, name string, role Role) *Keys {
	t.Helper()
	key, csr, err := NewKey("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Sign(csr, name, role, DefaultLife)
	if err != nil {
		t.Fatal(err)
	}
	files := FilesIn(filepath.Join(t.TempDir(), "keys"))
	if err := files.Save(cert, key, ca.DER()); err != nil {
		t.Fatal(err)
	}
	k, err := Load(files)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// shake performs a TLS handshake between server and client. It returns the name of the client, as the
// server has verified it, and the error of each end.
func shake(server, client *tls.Config) (peer string, serverErr, clientErr error) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	deadline := time.Now().Add(time.Minute)
	_ = a.SetDeadline(deadline)
	_ = b.SetDeadline(deadline)
	done := make(chan error)
	s := tls.Server(a, server)
	go func() {
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		} else {
			a.Close()
		}
		done <- err
	}()
	c := tls.Client(b, client)
	if clientErr = c.Handshake(); clientErr == nil {
		// A client whose certificate the server refuses learns this only when it reads.
		_, clientErr = c.Read(make([]byte, 1))
	} else {
		b.Close()
	}
	serverErr = <-done
	if peers := s.ConnectionState().PeerCertificates; len(peers) > 0 {
		peer, _, _ = Identity(peers[0])
	}
	return peer, serverErr, clientErr
}

func TestHandshake(t *testing.T) {
	ca, other := testCA(t), testCA(t)
	central, host := holder(t, ca, "a", Central), holder(t, ca, "h1", Host)
	token := NewToken(ca.Digest())
	for _, c := range []struct {
		name           string
		server, client *tls.Config
		seen           string
		words          string // text in the error of one end; "": no error is expected
	}{
		{"host to central", central.Server(), host.Client(), "h1", ""},
		{"central to central", central.Server(), central.Client(), "a", ""},
		{"token to central", central.Server(), token.Enrol(), "", ""},
		{"host to host", host.Server(), central.Client(), "", "incompatible key usage"},
		{"another fleet's host", central.Server(), holder(t, other, "h1", Host).Client(), "", "unknown authority"},
		{"another fleet's central", holder(t, other, "a", Central).Server(), host.Client(), "", "unknown authority"},
		{"another fleet's token", central.Server(), NewToken(other.Digest()).Enrol(), "", "does not show the CA of the token"},
		{"TLS 1.2", central.Server(), &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}, "", "version"},
	} {
		seen, serverErr, clientErr := shake(c.server, c.client)
		err := fmt.Sprint(serverErr, clientErr)
		if c.words == "" && (serverErr != nil || clientErr != nil) || !strings.Contains(err, c.words) {
			t.Errorf("%s: %s, expected %q", c.name, err, c.words)
		}
		if c.words == "" && seen != c.seen {
			t.Errorf("%s: the server sees %q, expected %q", c.name, seen, c.seen)
		}
	}
}

// writes records the lengths of the writes to a connection.
type writes struct {
	net.Conn
	lengths []int
}

func (w *writes) Write(b []byte) (int, error) {
	w.lengths = append(w.lengths, len(b))
	return w.Conn.Write(b)
}

// A central's first message to a host is a single TLS record, which takes one system call.
func TestCentralSendsLargeRecords(t *testing.T) {
	ca := testCA(t)
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	to := &writes{Conn: a}
	server, client := tls.Server(to, holder(t, ca, "a", Central).Server()), tls.Client(b, holder(t, ca, "h1", Host).Client())
	const size = 8 << 10
	received := make(chan error)
	go func() {
		_, err := io.ReadFull(client, make([]byte, size))
		received <- err
	}()
	if err := server.Handshake(); err != nil {
		t.Fatal(err)
	}
	to.lengths = nil
	if _, err := server.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := <-received; err != nil {
		t.Fatal(err)
	}
	if len(to.lengths) != 1 {
		t.Errorf("writes of %v bytes, expected one", to.lengths)
	}
}

// Server and client use files that were replaced, without a restart. While the certificate and the key
// in the files do not match, they keep the previous ones.
func TestKeysReload(t *testing.T) {
	ca := testCA(t)
	central, host := holder(t, ca, "a", Central), holder(t, ca, "h1", Host)
	server, client := central.Server(), host.Client()
	serialOf := func() string {
		if _, s, c := shake(server, client); s != nil || c != nil {
			t.Fatal(s, c)
		}
		cert, _ := central.current()
		return cert.Leaf.SerialNumber.String()
	}
	first := serialOf()
	err := central.Renew([]string{"127.0.0.1"}, func(csr []byte) ([]byte, []byte, error) {
		cert, err := ca.Sign(csr, "a", Central, DefaultLife)
		return cert, ca.DER(), err
	})
	if err != nil {
		t.Fatal(err)
	}
	second := serialOf()
	if second == first {
		t.Error("the server shows the old certificate")
	}
	if err := os.WriteFile(central.files.Certificate, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	central.mu.Lock()
	central.checked = time.Time{}
	central.mu.Unlock()
	if serialOf() != second {
		t.Error("the server gave up its certificate for a damaged file")
	}
}

func TestSign(t *testing.T) {
	ca := testCA(t)
	_, csr, err := NewKey("192.0.2.1", "evil.example")
	if err != nil {
		t.Fatal(err)
	}
	der, err := ca.Sign(csr, "h1", Host, DefaultLife)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if name, role, err := Identity(cert); name != "h1" || role != Host || err != nil {
		t.Errorf("name %s, role %s, %v", name, role, err)
	}
	if len(cert.DNSNames)+len(cert.IPAddresses) != 0 || cert.IsCA {
		t.Errorf("a host's certificate has %v, %v, CA %v", cert.DNSNames, cert.IPAddresses, cert.IsCA)
	}
	if cert.VerifyHostname(CentralName) == nil {
		t.Error("a host passes for a central")
	}
	if r := renewal(cert); !r.After(time.Now().Add(DefaultLife/2)) || !r.Before(cert.NotAfter.Add(-DefaultLife/4)) {
		t.Errorf("renewal at %s, end at %s", r, cert.NotAfter)
	}
	for words, sign := range map[string]func() ([]byte, error){
		"not PKCS #10": func() ([]byte, error) { return ca.Sign([]byte("x"), "h1", Host, DefaultLife) },
		"at most":      func() ([]byte, error) { return ca.Sign(make([]byte, maxCSR+1), "h1", Host, DefaultLife) },
		"no role":      func() ([]byte, error) { return ca.Sign(csr, "h1", "root", DefaultLife) },
		"1 to 64":      func() ([]byte, error) { return ca.Sign(csr, "", Host, DefaultLife) },
		"its own key": func() ([]byte, error) {
			bad := append([]byte{}, csr...)
			bad[len(bad)-1] ^= 1
			return ca.Sign(bad, "h1", Host, DefaultLife)
		},
	} {
		if _, err := sign(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, expected %q", err, words)
		}
	}
}

// A renewed certificate is valid from the same time on as the old one. It is therefore valid at once,
// even if the clock was ahead when it was renewed.
func TestRenew(t *testing.T) {
	ca := testCA(t)
	_, csr, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	since := time.Now().Add(-1000 * time.Hour).Truncate(time.Second)
	der, err := ca.sign(csr, "h1", Host, since, DefaultLife)
	for range 2 {
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		name, role, err := Identity(cert)
		if name != "h1" || role != Host || err != nil || !cert.NotBefore.Equal(since) {
			t.Errorf("%s %s, %v, valid since %s, expected %s", role, name, err, cert.NotBefore, since)
		}
		if r := renewal(cert); time.Until(r) < DefaultLife/2 || time.Until(r) > DefaultLife*3/4 {
			t.Errorf("renewal at %s, end at %s", r, cert.NotAfter)
		}
		if der, err = ca.Renew(csr, cert, DefaultLife); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCAFiles(t *testing.T) {
	ca, dir := testCA(t), t.TempDir()
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "ca-key.pem"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key has mode %v, %v", info.Mode(), err)
	}
	again, err := LoadCA(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "ca-key.pem"))
	if err != nil || again.Digest() != ca.Digest() {
		t.Fatal(err)
	}
	key, err := again.Key()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseCA(ca.DER(), key); err != nil {
		t.Error(err)
	}
	if _, err := ParseCA(testCA(t).DER(), key); err == nil {
		t.Error("a CA with another's key is taken")
	}
	k := holder(t, ca, "h1", Host)
	for file, mode := range map[string]os.FileMode{k.files.Key: 0o600, filepath.Dir(k.files.Key): 0o700} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s has mode %v, %v", file, info.Mode(), err)
		}
	}
}

func TestToken(t *testing.T) {
	token := NewToken([32]byte{1, 2, 3})
	again, err := ParseToken(" " + token.Text() + "\n")
	if err != nil || again != token || again.ID() != token.ID() {
		t.Errorf("%v, %v", again, err)
	}
	for _, shown := range []string{fmt.Sprint(token), fmt.Sprintf("%v %+v %#v %s", token, token, token, token), token.ID()} {
		if strings.Contains(shown, token.secret) {
			t.Errorf("%q shows the secret", shown)
		}
	}
	for _, bad := range []string{"", "weft1.x.y", token.Text()[1:], strings.ToLower(token.Text()), token.Text() + "x"} {
		if _, err := ParseToken(bad); err == nil || len(bad) > 20 && strings.Contains(err.Error(), bad[8:20]) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
