// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/vsock"
)

const testPatience = 30 * time.Second

// pipes is a net.Listener for connections whose remote addresses the test chooses.
type pipes struct {
	addr  net.Addr
	conns chan net.Conn
	errs  chan error // errors of the next calls of Accept
	done  chan struct{}
	once  sync.Once
}

func newPipes(addr net.Addr) *pipes {
	return &pipes{addr: addr, conns: make(chan net.Conn), errs: make(chan error, 8), done: make(chan struct{})}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case err := <-p.errs:
		return nil, err
	default:
	}
	select {
	case err := <-p.errs:
		return nil, err
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return p.addr }

func (p *pipes) pipeFrom(t *testing.T, addr net.Addr) net.Conn {
	t.Helper()
	server, client := socketPair(t)
	select {
	case p.conns <- addressed{server, addr}:
	case <-time.After(testPatience):
		t.Fatal("the listener does not accept")
	}
	return client
}

type addressed struct {
	net.Conn
	addr net.Addr
}

func (a addressed) RemoteAddr() net.Addr { return a.addr }

// socketPair returns both ends of a TCP connection. Unlike net.Pipe, it buffers bytes.
func socketPair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

var testRoutes = map[string]Route{
	"GET /look":    {Role: Read},
	"POST /change": {Role: Write},
	"GET /dump":    {Role: Read, Expensive: true},
}

// testServers serves testRoutes over a simulated vsock listener.
func testServers(t *testing.T, allow map[uint32]Role, handle func(m *Mux)) (*Servers, *pipes) {
	t.Helper()
	fake := newPipes(&vsock.Addr{ContextID: 1, Port: 9})
	real := listenVsock
	listenVsock = func(uint32) (net.Listener, error) { return fake, nil }
	t.Cleanup(func() { listenVsock = real })
	cids := DefaultCIDs()
	for cid, role := range allow {
		cids[cid] = role
	}
	s, err := Open(Config{Socket: filepath.Join(t.TempDir(), "s"), VsockPort: 9, Metrics: "127.0.0.1:0",
		Policy: Policy{UID: os.Geteuid(), WriteGroup: NoGroup, ReadGroup: NoGroup, CIDs: cids}, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	m := s.NewMux(testRoutes)
	ok := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "ok") }
	if handle != nil {
		handle(m)
	} else {
		m.HandleFunc("GET /look", ok)
		m.HandleFunc("POST /change", ok)
	}
	metrics := http.NewServeMux()
	metrics.HandleFunc("GET /metrics", ok)
	s.Serve(m, metrics)
	return s, fake
}

func clientOver(dial func() (net.Conn, error)) *http.Client {
	return &http.Client{Timeout: testPatience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return dial() }}}
}

func ask(t *testing.T, c *http.Client, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://weft"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// Over vsock, the host of this machine may do everything. Guests, and processes of this machine, have
// only the roles that the policy lists for their CID (vsock address). By default they have none.
func TestVsockRoles(t *testing.T) {
	_, fake := testServers(t, map[uint32]Role{5: Read, 7: Write, 8: None}, nil)
	for _, c := range []struct {
		cid  uint32
		role Role
	}{{vsock.Host, Write}, {vsock.Local, None}, {vsock.Hypervisor, None}, {3, None}, {5, Read}, {7, Write}, {8, None}, {1 << 31, None}} {
		client := clientOver(func() (net.Conn, error) { return fake.pipeFrom(t, &vsock.Addr{ContextID: c.cid, Port: 1}), nil })
		for _, r := range []struct {
			method, path string
			required     Role
		}{{"GET", "/look", Read}, {"POST", "/change", Write}} {
			status, text := ask(t, client, r.method, r.path, "")
			want := http.StatusOK
			if c.role < r.required {
				want = http.StatusForbidden
			}
			if status != want {
				t.Errorf("CID %d, %s %s: status %d, want %d: %s", c.cid, r.method, r.path, status, want, text)
			}
			if want == http.StatusForbidden && (!strings.Contains(text, "cid ") || !strings.Contains(text, r.path) || strings.Count(text, "\n") != 1) {
				t.Errorf("CID %d: %s", c.cid, text)
			}
		}
	}
}

func TestUnixRoles(t *testing.T) {
	p := Policy{UID: 990, WriteGroup: 100, ReadGroup: 200}
	for _, c := range []struct {
		uid  uint32
		gids []uint32
		want Role
	}{
		{0, []uint32{0}, Write}, {990, []uint32{990}, Write}, {1000, []uint32{1000}, None}, {1000, []uint32{1000, 100}, Write},
		{1000, []uint32{200}, Read}, {1000, []uint32{200, 100}, Write}, {65534, []uint32{65534}, None}, {1000, []uint32{0}, None},
		{1000, nil, None},
	} {
		if got := p.Unix(c.uid, c.gids); got != c.want {
			t.Errorf("uid %d, groups %v: %s, want %s", c.uid, c.gids, got, c.want)
		}
	}
	p = Policy{UID: 990, WriteGroup: NoGroup, ReadGroup: NoGroup}
	if got := p.Unix(1000, []uint32{0, 4294967295}); got != None {
		t.Errorf("without groups: %s", got)
	}
}

// A route without a role refuses every peer.
func TestRouteWithoutRowIsRefused(t *testing.T) {
	s, _ := testServers(t, nil, func(m *Mux) {
		m.HandleFunc("GET /forgotten", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "secret") })
	})
	client := clientOver(func() (net.Conn, error) { return net.Dial("unix", s.api[0].Addr().String()) })
	if status, text := ask(t, client, "GET", "/forgotten", ""); status != http.StatusForbidden || strings.Contains(text, "secret") {
		t.Errorf("%d %s", status, text)
	}
}

// Refused requests do not fill the log.
func TestRefusalsHaveFewLines(t *testing.T) {
	var l refusalLog
	now, lines, unlogged := time.Now(), 0, 0
	for i := range 1000 {
		n, ok := l.due(now.Add(time.Duration(i) * time.Millisecond))
		if ok {
			lines++
		}
		unlogged += n
	}
	n, ok := l.due(now.Add(2 * time.Second))
	if lines != maxRefusalLines || !ok || unlogged+n != 1000-maxRefusalLines {
		t.Errorf("%d lines, %d counted", lines, unlogged+n)
	}
}
