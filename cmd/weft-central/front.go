// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"weft/central/pki"
)

const (
	// A stranger is a connection without a verified client certificate, because it has none or because
	// its TLS handshake is not complete. maxStrangers limits all of them, and maxAddressStrangers those
	// of one IPv4 address or one IPv6 prefix of 64 bits.
	//
	// At maxAddressStrangers, a new stranger replaces the oldest one of its address. At maxStrangers,
	// it replaces the oldest one of the address with the most. A stranger younger than strangerGrace is
	// only replaced at maxStrangers, and only if the new one's address has fewer. If no stranger can be
	// replaced, the new connection is closed.
	maxStrangers        = 512
	maxAddressStrangers = 64
	strangerGrace       = time.Second
	// The same two limits at the address for other centrals, of which there are few.
	maxMemberStrangers        = 128
	maxMemberAddressStrangers = 32
	// maxHostConnections limits the connections with the certificate of one host. At the limit, a new
	// connection replaces the oldest one, because the host opens a new one only after it has lost the
	// others.
	maxHostConnections = 8
	// reservedFiles is the number of file descriptors that connections of hosts and strangers leave for
	// administrators, other centrals and etcd.
	reservedFiles = 512
	// handshakeRate limits the TLS handshakes a second, and handshakeBurst the handshakes that may
	// begin at once. Further handshakes wait. A handshake takes about a millisecond of a core. A
	// handshake counts against these limits from the client's first byte on.
	handshakeRate  = 300
	handshakeBurst = 300
	// handshakeTimeout limits the time of a handshake. It includes the waits for the client's first
	// byte and for the rate limit.
	handshakeTimeout = 10 * time.Second
	// Limits of a connection without a client certificate. maxStrangerMessage is its largest message in
	// bytes. maxStrangerStreams is the number of its simultaneous calls. strangerTimeout is the time
	// after which it is closed.
	maxStrangerMessage = 64 << 10
	maxStrangerStreams = 1
	strangerTimeout    = time.Minute
)

// front accepts the connections to one address of a central and does their TLS handshakes. It passes
// connections with a client certificate to one gRPC server and the others to a second one, because
// gRPC's limits of messages and calls are those of a whole server.
//
// At the address for other centrals, it passes the connections to etcd. etcd's own listener has no
// limit of connections: once no file descriptor is left, it never accepts again.
type front struct {
	inner      net.Listener
	config     *tls.Config
	handshakes *rate.Limiter
	timeout    time.Duration // handshakeTimeout
	grace      time.Duration // strangerGrace
	limits     frontLimits
	known      *entrance
	strangers  *entrance
	closed     chan struct{}
	closing    sync.Once

	mu       sync.Mutex // guards the fields below; no lock is taken under it
	conns    map[*conn]struct{}
	hosts    int // number of conns with a host's certificate
	entered  uint64
	refused  uint64 // connections closed at a limit
	gaveWay  uint64 // connections closed to make room for newer ones
	unproven uint64 // failed handshakes
}

// frontLimits are the limits of a front: how many connections of each kind it keeps open.
type frontLimits struct {
	strangers        int // maxStrangers or maxMemberStrangers
	addressStrangers int // maxAddressStrangers or maxMemberAddressStrangers
	hosts            int // connections with a host's certificate
}

// limitsOfClients returns the limits at the address for hosts and administrators.
func limitsOfClients() frontLimits {
	return frontLimits{maxStrangers, maxAddressStrangers, mostHosts()}
}

// limitsOfMembers are the limits at the address for other centrals.
var limitsOfMembers = frontLimits{maxMemberStrangers, maxMemberAddressStrangers, 0}

// conn is a connection that a front has accepted. The mutex of the front guards its fields, except for
// raw and the embedded connection.
type conn struct {
	net.Conn // with TLS; nil before the handshake
	raw      net.Conn
	front    *front
	address  string
	host     string // name in the certificate of a host
	stranger bool   // no certificate yet
	number   uint64
	since    time.Time
}

// entrance is the net.Listener of one of the two gRPC servers. Its Accept returns connections whose
// handshake is complete.
type entrance struct {
	front *front
	conns chan net.Conn
}

func newFront(inner net.Listener, config *tls.Config, limits frontLimits) *front {
	f := &front{inner: inner, config: config, handshakes: rate.NewLimiter(handshakeRate, handshakeBurst), timeout: handshakeTimeout, grace: strangerGrace,
		limits: limits, closed: make(chan struct{}), conns: map[*conn]struct{}{}}
	f.known, f.strangers = &entrance{f, make(chan net.Conn)}, &entrance{f, make(chan net.Conn)}
	return f
}

// mostHosts returns the limit of connections with a host's certificate. It is the process's limit of
// file descriptors (RLIMIT_NOFILE), without those for other purposes.
func mostHosts() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return reservedFiles
	}
	files := int(min(limit.Cur, 1<<20))
	return max(files-reservedFiles-maxStrangers-maxMemberStrangers, files/4)
}

// Accept implements net.Listener. It waits for a connection whose TLS handshake is complete.
func (e *entrance) Accept() (net.Conn, error) {
	select {
	case c := <-e.conns:
		return c, nil
	case <-e.front.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It closes the whole front, with the listeners of both gRPC servers.
func (e *entrance) Close() error {
	e.front.close()
	return nil
}

// Addr implements net.Listener. It returns the address at which the front listens.
func (e *entrance) Addr() net.Addr { return e.front.inner.Addr() }

// Close implements net.Conn. It also removes the connection from the front's list.
func (c *conn) Close() error {
	c.front.mu.Lock()
	c.front.forget(c)
	c.front.mu.Unlock()
	if c.Conn == nil {
		return c.raw.Close()
	}
	return c.Conn.Close()
}

func (f *front) close() {
	f.closing.Do(func() {
		close(f.closed)
		f.inner.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		for c := range f.conns {
			if c.stranger {
				c.raw.Close() // a handshake in progress ends; gRPC closes the others
			}
		}
	})
}

// run accepts connections until the listener is closed.
func (f *front) run() error {
	for {
		raw, err := f.inner.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			select {
			case <-f.closed:
				return nil
			case <-time.After(100 * time.Millisecond): // descriptors may be used up
				continue
			}
		}
		c := &conn{raw: raw, front: f, address: addressOf(raw.RemoteAddr()), stranger: true, since: time.Now()}
		if !f.enter(c) {
			raw.Close()
			continue
		}
		go f.serve(c)
	}
}

// addressOf returns the address under which a connection is counted. For IPv6, this is a prefix of 64
// bits, because one machine can have all addresses of such a prefix.
func addressOf(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return a.String()
	}
	address := tcp.AddrPort().Addr().Unmap().WithZone("")
	if address.Is4() {
		return address.String()
	}
	return netip.PrefixFrom(address, 64).Masked().String()
}

// serve does the handshake of a connection and passes it to its gRPC server.
func (f *front) serve(c *conn) {
	secure, err := f.handshake(c)
	if err != nil {
		f.mu.Lock()
		f.unproven++
		f.mu.Unlock()
		c.Close()
		return
	}
	c.Conn = secure
	to := f.strangers
	if chains := secure.ConnectionState().VerifiedChains; len(chains) > 0 {
		to = f.known
		name, role, err := pki.Identity(chains[0][0])
		if err != nil || role != pki.Host {
			name = ""
		}
		if !f.prove(c, name) {
			c.Close()
			return
		}
	}
	select {
	case to.conns <- c:
	case <-f.closed:
		c.Close()
	}
}

func (f *front) handshake(c *conn) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	begun := begunConn{Conn: c.raw}
	end, _ := ctx.Deadline()
	_ = c.raw.SetReadDeadline(end)
	if _, err := io.ReadFull(c.raw, begun.first[:]); err != nil {
		return nil, err
	}
	_ = c.raw.SetReadDeadline(time.Time{})
	if err := f.handshakes.Wait(ctx); err != nil {
		return nil, err
	}
	secure := tls.Server(&begun, f.config)
	return secure, secure.HandshakeContext(ctx)
}

// begunConn is a connection from which the first byte has been read already. Its method Read returns
// this byte again, so that package tls sees the whole handshake.
type begunConn struct {
	net.Conn
	first [1]byte
	read  bool // the first byte has been returned
}

// Read implements net.Conn. Its first call returns the byte that was read before.
func (c *begunConn) Read(b []byte) (int, error) {
	if c.read || len(b) == 0 {
		return c.Conn.Read(b)
	}
	c.read = true
	return copy(b, c.first[:]), nil
}

// enter registers a new connection, which has shown no certificate yet. It returns false if a limit is
// reached and no other connection may be replaced.
func (f *front) enter(c *conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	strangers, most := map[string]int{}, ""
	all := 0
	for other := range f.conns {
		if other.stranger {
			all++
			if strangers[other.address]++; strangers[other.address] > strangers[most] {
				most = other.address
			}
		}
	}
	of, grace := "", f.grace
	switch {
	case strangers[c.address] >= f.limits.addressStrangers:
		of = c.address
	case all >= f.limits.strangers:
		if of = most; strangers[c.address]+1 < strangers[most] {
			grace = 0
		}
	}
	if of != "" && !f.makeRoom(func(old *conn) bool { return old.stranger && old.address == of && time.Since(old.since) >= grace }) {
		f.refused++
		return false
	}
	f.entered++
	c.number = f.entered
	f.conns[c] = struct{}{}
	return true
}

// prove records that a connection has a client certificate. hostName is the name in it if its role is
// host, otherwise "". prove returns false if hosts have too many connections.
func (f *front) prove(c *conn, hostName string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, present := f.conns[c]; !present {
		return false
	}
	if hostName != "" {
		own := 0
		for other := range f.conns {
			if other.host == hostName {
				own++
			}
		}
		if own >= maxHostConnections {
			f.makeRoom(func(old *conn) bool { return old.host == hostName })
		}
		if f.hosts >= f.limits.hosts {
			f.refused++
			return false
		}
		f.hosts++
	}
	c.stranger, c.host = false, hostName
	return true
}

// makeRoom closes the oldest connection for which the function candidate returns true. It returns false
// if there is none. The caller holds f.mu.
func (f *front) makeRoom(candidate func(*conn) bool) bool {
	var oldest *conn
	for c := range f.conns {
		if candidate(c) && (oldest == nil || c.number < oldest.number) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	f.gaveWay++
	f.forget(oldest)
	oldest.raw.Close()
	return true
}

// forget removes a connection from the list, if it is there. The caller holds f.mu.
func (f *front) forget(c *conn) {
	if _, present := f.conns[c]; !present {
		return
	}
	delete(f.conns, c)
	if c.host != "" {
		f.hosts--
	}
}

// frontCounts has the counters of a front.
type frontCounts struct{ strangers, refused, gaveWay, unproven float64 }

func (f *front) counts() (n frontCounts) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		if c.stranger {
			n.strangers++
		}
	}
	n.refused, n.gaveWay, n.unproven = float64(f.refused), float64(f.gaveWay), float64(f.unproven)
	return n
}

// proven implements gRPC's credentials for connections whose TLS handshake a front has done already.
type proven struct{}

// ServerHandshake implements credentials.TransportCredentials. It returns the result of the handshake
// that the front has done.
func (proven) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, ok := raw.(*conn)
	if !ok {
		return nil, nil, errors.New("a connection that the front has not accepted")
	}
	state := c.Conn.(*tls.Conn).ConnectionState()
	return c, credentials.TLSInfo{State: state, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

// ClientHandshake implements credentials.TransportCredentials. It always fails, because these credentials
// are for servers.
func (proven) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("no credentials of a client")
}

// Info implements credentials.TransportCredentials. It returns "tls" as the name of the protocol.
func (proven) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (p proven) Clone() credentials.TransportCredentials { return p }

// OverrideServerName implements credentials.TransportCredentials. It does nothing, because only clients
// check a server's name.
func (proven) OverrideServerName(string) error { return nil }

// strangerOptions returns the options of the gRPC server for connections without a certificate: their
// limits.
func strangerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.MaxRecvMsgSize(maxStrangerMessage), grpc.MaxConcurrentStreams(maxStrangerStreams),
		grpc.ConnectionTimeout(handshakeTimeout), grpc.MaxHeaderListSize(16 << 10),
		grpc.InitialWindowSize(maxStrangerMessage), grpc.InitialConnWindowSize(maxStrangerMessage),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: handshakeTimeout, MaxConnectionAge: strangerTimeout,
			MaxConnectionAgeGrace: time.Second, Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingTimeout, PermitWithoutStream: true})}
}
