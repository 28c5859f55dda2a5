// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"weft/central/pki"
	"weft/central/wire"
)

// patience is the time for which a test waits for an event.
const patience = time.Minute

// certificateOf returns a certificate that signs itself, with a name and a role.
func certificateOf(t *testing.T, name string, role pki.Role) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name, OrganizationalUnit: []string{string(role)}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{name},
		IsCA: true, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// frontRig is a front with its two servers.
type frontRig struct {
	*front
	t       *testing.T
	address string
}

// enrolments answers every request for a certificate.
type enrolments struct {
	wire.UnimplementedEnrolmentServer
}

func (enrolments) Enrol(context.Context, *wire.EnrolRequest) (*wire.Enrolled, error) {
	return &wire.Enrolled{}, nil
}

func newFrontRig(t *testing.T, clients ...tls.Certificate) *frontRig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for _, c := range clients {
		pool.AddCert(c.Leaf)
	}
	f := newFront(l, &tls.Config{Certificates: []tls.Certificate{certificateOf(t, "central", pki.Central)}, NextProtos: []string{"h2"},
		ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13}, limitsOfClients())
	f.grace, f.timeout, f.handshakes = 0, time.Hour, rate.NewLimiter(rate.Inf, 0)
	known := grpc.NewServer(grpc.Creds(proven{}))
	strangers := grpc.NewServer(append(strangerOptions(), grpc.Creds(proven{}))...)
	for _, s := range []*grpc.Server{known, strangers} {
		wire.RegisterEnrolmentServer(s, enrolments{})
	}
	go f.run()
	go known.Serve(f.known)
	go strangers.Serve(f.strangers)
	t.Cleanup(func() { known.Stop(); strangers.Stop(); f.close() })
	return &frontRig{front: f, t: t, address: l.Addr().String()}
}

func clientTLS(certificates ...tls.Certificate) *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, Certificates: certificates, MinVersion: tls.VersionTLS13}
}

// enrol calls Enrol on a new connection with a request of n bytes.
func (r *frontRig) enrol(n int, certificates ...tls.Certificate) error {
	r.t.Helper()
	c, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(certificates...))))
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = wire.NewEnrolmentClient(c).Enrol(ctx, &wire.EnrolRequest{Csr: make([]byte, n)}, grpc.WaitForReady(true))
	return err
}

// dial opens a connection from an address of the loopback device, and sends nothing.
func (r *frontRig) dial(from string) net.Conn {
	r.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return c
}

// ends reports whether the front closes a connection.
func ends(c net.Conn) bool {
	_ = c.SetReadDeadline(time.Now().Add(patience))
	_, err := io.Copy(io.Discard, c)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

func (r *frontRig) waitFor(event string, good func(frontCounts) bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !good(r.counts()); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: %+v", event, r.counts())
		}
	}
}

// Without a certificate, a message is limited to maxStrangerMessage. With one it is not.
func TestStrangersSendShortMessages(t *testing.T) {
	host := certificateOf(t, "h1", pki.Host)
	r := newFrontRig(t, host)
	if err := r.enrol(1 << 10); err != nil {
		t.Errorf("a short request: %v", err)
	}
	if err := r.enrol(maxStrangerMessage + 1); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a long request without a certificate: %v, want ResourceExhausted", err)
	}
	if err := r.enrol(maxStrangerMessage+1, host); err != nil {
		t.Errorf("a long request with a certificate: %v", err)
	}
}

// Silent connections keep nobody out: at the limits, the oldest of them is closed for a new one.
func TestSilentStrangersGiveWay(t *testing.T) {
	host := certificateOf(t, "h1", pki.Host)
	r := newFrontRig(t, host)
	var silent []net.Conn
	for n := range maxStrangers {
		silent = append(silent, r.dial([]string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6", "127.0.0.7", "127.0.0.8", "127.0.0.9"}[n%8]))
	}
	r.waitFor("the silent connections are accepted", func(n frontCounts) bool { return n.strangers == maxStrangers })
	if err := r.enrol(10); err != nil {
		t.Errorf("a stranger at another address: %v", err)
	}
	if err := r.enrol(10, host); err != nil {
		t.Errorf("a host: %v", err)
	}
	before := r.counts()
	r.dial("127.0.0.2") // the stranger may have taken the place of one
	r.dial("127.0.0.2")
	r.waitFor("two more silent connections", func(n frontCounts) bool { return n.gaveWay > before.gaveWay })
	if n := r.counts(); n.refused != 0 || n.strangers > maxStrangers {
		t.Errorf("%+v", n)
	}
	if !ends(silent[0]) {
		t.Error("the oldest silent connection stays")
	}
}

// A stranger whose address has too many young connections is refused.
func TestYoungStrangersStay(t *testing.T) {
	r := newFrontRig(t)
	r.mu.Lock()
	r.grace = time.Hour
	r.mu.Unlock()
	for range maxAddressStrangers {
		r.dial("127.0.0.2")
	}
	r.waitFor("connections", func(n frontCounts) bool { return n.strangers == maxAddressStrangers })
	if !ends(r.dial("127.0.0.2")) || r.counts().refused != 1 {
		t.Errorf("%+v", r.counts())
	}
}

// A stranger whose address has few connections always gets in: at the limit of all strangers, an
// address with more of them gives one up, however young it is.
func TestYoungStrangersOfOthersGiveWay(t *testing.T) {
	r := newFrontRig(t)
	r.mu.Lock()
	r.grace = time.Hour
	r.mu.Unlock()
	for n := range maxStrangers {
		r.dial(fmt.Sprint("127.0.0.", 2+n%(maxStrangers/32)))
	}
	r.waitFor("connections", func(n frontCounts) bool { return n.strangers == maxStrangers })
	if err := r.enrol(10); err != nil {
		t.Error(err)
	}
	if n := r.counts(); n.refused != 0 || n.gaveWay != 1 {
		t.Errorf("%+v", n)
	}
}

// A connection that sends nothing does not count against the rate of handshakes.
func TestSilentStrangersDelayNoHandshake(t *testing.T) {
	r := newFrontRig(t)
	r.handshakes = rate.NewLimiter(0, 1)
	for range 10 {
		r.dial("127.0.0.2")
	}
	r.waitFor("connections", func(n frontCounts) bool { return n.strangers == 10 })
	if err := r.enrol(10); err != nil {
		t.Error(err)
	}
}

// A host keeps its newest connections. Connections of hosts leave descriptors for the
// administrator.
func TestConnectionsOfHosts(t *testing.T) {
	first, second, admin := certificateOf(t, "h1", pki.Host), certificateOf(t, "h2", pki.Host), certificateOf(t, "root", pki.Admin)
	r := newFrontRig(t, first, second, admin)
	r.mu.Lock()
	r.limits.hosts = maxHostConnections
	r.mu.Unlock()
	var conns []net.Conn
	for range maxHostConnections + 1 {
		c := tls.Client(r.dial("127.0.0.1"), clientTLS(first))
		if err := c.Handshake(); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		r.waitFor("the host is known", func(n frontCounts) bool { return n.strangers == 0 })
	}
	if !ends(conns[0]) || r.counts().gaveWay != 1 {
		t.Errorf("the oldest connection of a host stays: %+v", r.counts())
	}
	c := tls.Client(r.dial("127.0.0.1"), clientTLS(second))
	_ = c.Handshake()
	if !ends(c) || r.counts().refused != 1 {
		t.Errorf("a connection beyond those of all hosts stays: %+v", r.counts())
	}
	if err := r.enrol(10, admin); err != nil {
		t.Errorf("an administrator: %v", err)
	}
}
