// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
)

// dialFrom connects to a TCP listener from an address of the loopback device.
func dialFrom(t *testing.T, l net.Listener, from string) *peer {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &peer{t: t, Conn: c, v: openflow.Version13}
}

// byAddress is a Setup.Role that names a peer by its address, as package access does.
func byAddress(nc net.Conn) (Role, string) {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return Write, a.IP.String()
	}
	return Write, "uid 0"
}

// A peer that stops before its hello is complete loses its connection, on each kind of
// listener.
func TestSilentPeersEnd(t *testing.T) {
	ours := newAuthority(t)
	pssl, err := Listen("pssl:0", ours.config())
	if err != nil {
		t.Fatal(err)
	}
	ptcp := listener(t)
	r := newRig(t, func(s *Setup) {
		s.Listeners, s.helloTimeout = append(s.Listeners, pssl, ptcp), 50*time.Millisecond
	})
	config := ours.config()
	config.VerifyConnection = nil // the listener has no name
	peers := map[string]*peer{"unix": r.dial(), "ptcp": dialFrom(t, ptcp, "127.0.0.1"), "pssl without a handshake": dialFrom(t, pssl, "127.0.0.1")}
	half := dialFrom(t, ptcp, "127.0.0.1")
	_, _ = half.Write([]byte{4, 0, 0, 8, 0})
	peers["ptcp with half a hello"] = half
	started := dialFrom(t, pssl, "127.0.0.1")
	_, _ = started.Write([]byte{22, 3, 1}) // the type and version of a TLS record
	peers["pssl with half a handshake"] = started
	quiet := dialFrom(t, pssl, "127.0.0.1")
	quiet.Conn = tls.Client(quiet.Conn, config)
	peers["pssl without a hello"] = quiet
	for name, p := range peers {
		if !p.closes() {
			t.Errorf("%s: the connection stays open", name)
		}
	}
	for end := time.Now().Add(patience); r.service.Counts().Stalled.Load() < uint64(len(peers)); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are counted as stalled, want %d", r.service.Counts().Stalled.Load(), len(peers))
		}
	}
}

// Peers of a TCP listener that send no hello keep nobody out, because the service closes the
// oldest of their connections for a new one. They do not affect peers of the unix socket.
func TestSilentPeersGiveWay(t *testing.T) {
	ptcp := listener(t)
	r := newRig(t, func(s *Setup) {
		s.Listeners, s.Role, s.helloTimeout = append(s.Listeners, ptcp), byAddress, time.Hour
	})
	var silent []*peer
	for n := range maxRemoteConnections {
		p := dialFrom(t, ptcp, []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4"}[n%4])
		p.read() // the switch's hello: the connection is accepted
		silent = append(silent, p)
	}
	local := r.connect(openflow.Version13)
	local.barrier()
	for _, from := range []string{"127.0.0.1", "127.0.0.5"} {
		p := dialFrom(t, ptcp, from)
		p.read()
		p.write(ofptest.Message(p.v, ofp.TypeHello, 1))
		p.barrier()
	}
	if !silent[0].closes() {
		t.Error("the oldest silent connection stays")
	}
	c := r.service.Counts()
	if c.Refused.Load() != 0 || c.GaveWay.Load() != 2 {
		t.Errorf("%d connections refused, %d gave way; want 0 and 2", c.Refused.Load(), c.GaveWay.Load())
	}
}

// Peers of one address may have maxAddressConnections working connections, and no more.
func TestAddressLimit(t *testing.T) {
	ptcp := listener(t)
	r := newRig(t, func(s *Setup) { s.Listeners, s.Role = append(s.Listeners, ptcp), byAddress })
	for range maxAddressConnections {
		p := dialFrom(t, ptcp, "127.0.0.1")
		p.read()
		p.write(ofptest.Message(p.v, ofp.TypeHello, 1))
		p.barrier()
	}
	if p := dialFrom(t, ptcp, "127.0.0.1"); !p.closes() || r.service.Counts().Refused.Load() != 1 {
		t.Errorf("%d connections refused, want 1", r.service.Counts().Refused.Load())
	}
	p := dialFrom(t, ptcp, "127.0.0.2")
	if m := p.read(); m[1] != ofp.TypeHello {
		t.Errorf("another address gets % x", m)
	}
}

// A peer of a TCP listener that sends nothing is asked for an echo, and loses its
// connection without an answer.
func TestSilentRemoteIsProbed(t *testing.T) {
	ptcp := listener(t)
	r := newRig(t, func(s *Setup) {
		s.Listeners, s.remoteProbeInterval = append(s.Listeners, ptcp), 50*time.Millisecond
	})
	p := dialFrom(t, ptcp, "127.0.0.1")
	p.read()
	p.write(ofptest.Message(p.v, ofp.TypeHello, 1))
	if m := p.read(); m[1] != ofp.TypeEchoRequest {
		t.Fatalf("a silent peer gets % x, want an echo request", m)
	}
	if !p.closes() || r.service.Counts().Stalled.Load() == 0 {
		t.Error("a peer that answers no echo stays connected")
	}
}

// The addresses of an IPv6 prefix of 64 bits count as one peer, because one host can
// have all of them.
func TestHolderOfAddress(t *testing.T) {
	for _, c := range []struct{ address, want string }{
		{"[2001:db8::1]:1", "2001:db8::/64"}, {"[2001:db8::ffff:0:0:1]:1", "2001:db8::/64"}, {"[2001:db8:0:1::1]:1", "2001:db8:0:1::/64"},
		{"192.0.2.1:1", "peer"}, {"[::ffff:192.0.2.1]:1", "peer"}, {"[fe80::1%lo]:1", "fe80::/64"},
	} {
		a, err := net.ResolveTCPAddr("tcp", c.address)
		if err != nil {
			t.Fatal(err)
		}
		if got := holderOf(a, "peer"); got != c.want {
			t.Errorf("%s: %s, want %s", c.address, got, c.want)
		}
	}
}
