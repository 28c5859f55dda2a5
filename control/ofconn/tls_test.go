// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/openflow"
)

// authority is a certificate authority of a test.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert, a.key = a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	return a
}

// sign makes a key and a certificate for it. The authority signs the certificate, or
// the certificate signs itself.
func (a *authority) sign(template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber, template.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// dir writes ca.pem, cert.pem and key.pem for a new certificate of the authority.
func (a *authority) dir() string {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{})
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	dir := a.t.TempDir()
	for name, block := range map[string]*pem.Block{"ca.pem": {Type: "CERTIFICATE", Bytes: a.cert.Raw},
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert.Raw}, "key.pem": {Type: "EC PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return dir
}

func (a *authority) config() *tls.Config {
	a.t.Helper()
	c, err := LoadTLS(a.dir())
	if err != nil {
		a.t.Fatal(err)
	}
	return c
}

// fixed returns a Following.TLS that always returns config.
func fixed(config *tls.Config) func() (*tls.Config, error) {
	return func() (*tls.Config, error) { return config, nil }
}

// With Bootstrap, the first connection stores the controller's authority, and later connections need
// this authority. Without it, a missing file is an error, as is a controller that sends no authority.
func TestBootstrap(t *testing.T) {
	ours, other := newAuthority(t), newAuthority(t)
	dir := ours.dir()
	c := Certificates{Key: dir + "/key.pem", Cert: dir + "/cert.pem", CA: dir + "/stored.pem"}
	connect := func(server *tls.Config) error {
		t.Helper()
		config, err := c.Load()
		if err != nil {
			return err
		}
		l, err := tls.Listen("tcp", "127.0.0.1:0", server)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			if nc, err := l.Accept(); err == nil {
				_ = nc.(*tls.Conn).Handshake()
				nc.Close()
			}
		}()
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(patience))
		return tls.Client(nc, config).Handshake()
	}
	withChain := func(a *authority) *tls.Config {
		config := a.config()
		config.VerifyConnection, config.ClientAuth = nil, tls.RequireAnyClientCert
		config.Certificates[0].Certificate = append(config.Certificates[0].Certificate, a.cert.Raw)
		return config
	}
	for _, step := range []struct {
		bootstrap bool
		server    *tls.Config
		problem   string // "": none
	}{
		{false, withChain(ours), "stored.pem: no such file"},
		{true, ours.config(), "no certificate of its authority"},
		{true, withChain(ours), "is now in " + c.CA},
		{true, withChain(ours), ""},
		{true, withChain(other), "unknown authority"},
		{false, withChain(ours), ""},
	} {
		c.Bootstrap = step.bootstrap
		if err := connect(step.server); (err == nil) != (step.problem == "") || err != nil && !strings.Contains(err.Error(), step.problem) {
			t.Errorf("bootstrap %v: %v, want %q", step.bootstrap, err, step.problem)
		}
	}
}

// A pssl listener and an ssl controller talk only to peers that have a certificate of
// the authority.
func TestTLS(t *testing.T) {
	ours, other := newAuthority(t), newAuthority(t)
	l, err := Listen("pssl:0", ours.config())
	if err != nil {
		t.Fatal(err)
	}
	controller, err := tls.Listen("tcp", "127.0.0.1:0", ours.config())
	if err != nil {
		t.Fatal(err)
	}
	defer controller.Close()
	r := newRig(t, func(s *Setup) {
		s.Listeners, s.TLS, s.Controllers = append(s.Listeners, l), fixed(ours.config()), []string{"ssl:" + controller.Addr().String()}
	})
	for name, c := range map[string]struct {
		config *tls.Config
		good   bool
	}{"ours": {ours.config(), true}, "of another authority": {other.config(), false}, "none": {&tls.Config{InsecureSkipVerify: true}, false}} {
		c.config.VerifyConnection = nil // the listener's check counts
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{t: t, Conn: tls.Client(conn, c.config), v: openflow.Version13}
		_ = p.SetReadDeadline(time.Now().Add(patience))
		one := make([]byte, 1)
		if _, err := p.Read(one); (err == nil) != c.good {
			t.Errorf("certificate %s: %v", name, err)
		}
		p.Close()
	}
	nc, err := controller.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, Conn: nc, v: openflow.Version13}
	if m := p.read(); m[1] != 0 {
		t.Errorf("% x", m)
	}
	p.Close()
	if got := r.service.Counts().Refused.Load(); got != 0 {
		t.Errorf("%d connections refused by a limit", got)
	}
}

// The error of an invalid listener, controller or certificate directory names it.
func TestTargetErrors(t *testing.T) {
	for _, text := range []string{"", "ptcp", "ptcp:", "ptcp:x", "tcp:1", "ptcp:1x:host"} {
		if _, _, err := ParseListener(text); err == nil || !strings.Contains(err.Error(), "expected ptcp:PORT") {
			t.Errorf("listener %q: %v", text, err)
		}
	}
	for _, text := range []string{"", "tcp:", "tcp:host", "ptcp:1", "udp:host:1"} {
		if _, _, err := ParseTarget(text, "tcp", "ssl"); err == nil || !strings.Contains(err.Error(), "expected tcp:HOST:PORT or ssl") {
			t.Errorf("controller %q: %v", text, err)
		}
	}
	if word, address, err := ParseListener("pssl:6653:[2001:db8::1]"); err != nil || word != "pssl" || address != "[2001:db8::1]:6653" {
		t.Errorf("%s %s %v", word, address, err)
	}
	if _, err := LoadTLS(t.TempDir()); err == nil || !strings.Contains(err.Error(), "ca.pem") {
		t.Errorf("%v", err)
	}
}
