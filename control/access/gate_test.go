// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"weft/control/limits"
)

func waitFor(t *testing.T, condition string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testPatience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within the test's patience: %s", condition)
		}
	}
}

func rowOf(t *testing.T, source limits.Source, name string, holder limits.Holder) limits.Row {
	t.Helper()
	var found limits.Row
	source(func(r limits.Row) {
		if r.Name == name && r.Holder == holder {
			found = r
		}
	})
	return found
}

// Idle connections to the metrics listener block neither the metrics nor the API.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	s, _ := testServers(t, nil, nil)
	address := s.metrics.Addr().String()
	for i := range 300 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if i%2 == 0 { // a header that never ends
			// error ignored: the gate may have closed the connection already
			_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n")
		}
	}
	waitFor(t, "all connections are accepted", func() bool {
		r := rowOf(t, s.LimitRows, "metrics_connections", limits.All())
		return r.Used+r.Refused >= 300
	})
	if r := rowOf(t, s.LimitRows, "metrics_connections", limits.All()); r.Used > maxMetricsConnections {
		t.Errorf("%d connections are open, the limit is %d", r.Used, maxMetricsConnections)
	}
	scraper := clientOver(func() (net.Conn, error) { return net.Dial("tcp", address) })
	if status, _ := ask(t, scraper, "GET", "/metrics", ""); status != http.StatusOK {
		t.Errorf("metrics: %d", status)
	}
	if status, text := ask(t, scraper, "GET", "/look", ""); status != http.StatusNotFound {
		t.Errorf("the metrics listener answers requests of the API: %d %s", status, text)
	}
	operator := clientOver(func() (net.Conn, error) { return net.Dial("unix", s.api[0].Addr().String()) })
	if status, _ := ask(t, operator, "POST", "/change", ""); status != http.StatusOK {
		t.Errorf("API: %d", status)
	}
}

// A peer whose connections are busy gets at most half of a listener's connections. The refusal names
// the peer and the limit.
func TestBusyPeerLeavesConnections(t *testing.T) {
	release := make(chan struct{})
	s, fake := testServers(t, map[uint32]Role{5: Read, 6: Read}, func(m *Mux) {
		m.HandleFunc("GET /look", func(w http.ResponseWriter, r *http.Request) {
			if PeerOf(r.Context()).Share == "cid 5" {
				<-release
			}
		})
	})
	defer close(release)
	gate := s.api[1].Gate
	for range maxVsockConnections {
		c := fake.pipeFrom(t, &vsock.Addr{ContextID: 5, Port: 1})
		if _, err := io.WriteString(c, "GET /look HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		// Wait: the gate first closes connections without a request.
		waitFor(t, "each request is in progress", func() bool {
			gate.mu.Lock()
			defer gate.mu.Unlock()
			for conn := range gate.conns {
				if !conn.busy.Load() && conn.Refusal == "" {
					return false
				}
			}
			return true
		})
	}
	row := rowOf(t, s.LimitRows, "vsock_connections", limits.Peer("cid 5"))
	if row.Used == 0 || row.Used > maxVsockConnections/2 {
		t.Errorf("%d connections of one peer", row.Used)
	}
	dial := func(cid uint32) *http.Client {
		return clientOver(func() (net.Conn, error) { return fake.pipeFrom(t, &vsock.Addr{ContextID: cid, Port: 1}), nil })
	}
	if status, text := ask(t, dial(6), "GET", "/look", ""); status != http.StatusOK {
		t.Errorf("another peer: %d %s", status, text)
	}
	gate.mu.Lock() // makes room for one more refusal
	gate.refusals -= maxRefusals
	gate.mu.Unlock()
	status, text := ask(t, dial(5), "GET", "/look", "")
	gate.mu.Lock()
	gate.refusals += maxRefusals
	gate.mu.Unlock()
	if status != http.StatusServiceUnavailable || !strings.Contains(text, "too many connections: cid 5") {
		t.Errorf("%d %s", status, text)
	}
	if r := rowOf(t, s.LimitRows, "vsock_connections", limits.All()); r.Refused == 0 {
		t.Error("no refusal is counted")
	}
}

// A connection that closes gives back its slot, its quota and its refusal exactly once.
func TestGateForgetsClosedConnections(t *testing.T) {
	g := newGate("test", 8)
	for i := range 100 {
		server, _ := socketPair(t)
		c := g.admit(server, Peer{Role: Write, Share: fmt.Sprint("uid ", i%3)})
		if c == nil {
			continue // limit reached
		}
		if i%2 == 0 {
			c.busy.Store(true)
			defer c.Close()
		}
	}
	g.mu.Lock()
	all := make([]*Conn, 0, len(g.conns))
	for c := range g.conns {
		all = append(all, c)
	}
	g.mu.Unlock()
	for _, c := range all {
		c.Close()
		c.Close()
	}
	if len(all) < 8 {
		t.Errorf("only %d connections were open", len(all))
	}
	if len(g.conns)+len(g.peers)+g.refusals != 0 {
		t.Errorf("left: %d connections, %v, %d refusals", len(g.conns), g.peers, g.refusals)
	}
}

// When no descriptor is free, a listener accepts connections with its reserve. When the reserve is
// used, it waits for free descriptors.
func TestAcceptOutlivesWantOfDescriptors(t *testing.T) {
	fake := newPipes(&vsock.Addr{})
	reserve := newReserve(1)
	defer reserve.Close()
	l := Listen(fake, newGate("test", 8), (&Policy{}).Identify, reserve)
	accepted := make(chan net.Conn)
	ended := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				ended <- err
				return
			}
			accepted <- c
		}
	}()
	emfile := &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", unix.EMFILE)}
	fake.errs <- emfile
	fake.pipeFrom(t, &vsock.Addr{ContextID: 5})
	first := <-accepted
	if len(reserve.held) != 0 {
		t.Error("the reserve was not used")
	}
	for range 3 {
		fake.errs <- emfile
	}
	fake.pipeFrom(t, &vsock.Addr{ContextID: 5})
	second := <-accepted
	first.Close()
	if len(reserve.held) != 1 {
		t.Error("the reserve was not refilled")
	}
	second.Close()
	l.Close()
	if err := <-ended; err != net.ErrClosed {
		t.Error(err)
	}
}

// A body that exceeds its limit is refused with an error of one line. When a request ends, it releases
// its memory. One peer gets at most half of the memory.
func TestBodies(t *testing.T) {
	read := make(chan error, 1)
	s, _ := testServers(t, nil, func(m *Mux) {
		m.HandleFunc("POST /change", func(w http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			read <- err
		})
	})
	client := clientOver(func() (net.Conn, error) { return net.Dial("unix", s.api[0].Addr().String()) })
	for _, c := range []struct {
		bytes int
		want  string
	}{{SmallBody, ""}, {SmallBody + 1, fmt.Sprintf("expected at most %d bytes", SmallBody)}} {
		req, err := http.NewRequest("POST", "http://weft/change", bytes.NewReader(make([]byte, c.bytes)))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Do(req); err == nil {
			resp.Body.Close()
		}
		if err := <-read; c.want == "" && err != nil || c.want != "" && (err == nil || err.Error() != c.want) {
			t.Errorf("a body of %d bytes: %v, want %q", c.bytes, err, c.want)
		}
	}
	waitFor(t, "all memory is released", func() bool {
		s.bodies.mu.Lock()
		defer s.bodies.mu.Unlock()
		return s.bodies.used == 0 && len(s.bodies.peers) == 0
	})
	if !s.bodies.take("uid 1", maxBodies/2) || s.bodies.take("uid 1", 1) || !s.bodies.take("uid 2", 1) {
		t.Error("one peer can use more than half of the quota, or leaves none to another peer")
	}
}

// The deadline of a transfer is a fixed time (patience) plus the time that its length takes at
// minRate.
func TestDeadlinesMoveWithBytes(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		bytes int64
		want  time.Duration
	}{{0, patience}, {100, patience}, {minRate, patience + time.Second}, {LargeBody, patience + 256*time.Second}} {
		if got := due(now, c.bytes).Sub(now); got.Round(time.Second) != c.want {
			t.Errorf("%d bytes: due after %v, want %v", c.bytes, got, c.want)
		}
	}
}

// A thousand expensive requests of one peer do not delay another peer.
func TestExpensiveRequestsTakeTurns(t *testing.T) {
	w := newWork("test")
	working, most, done := make(chan struct{}, 1000), 0, make(chan error, 1000)
	for range 1000 {
		go func() {
			end, err := w.begin(t.Context(), Peer{Role: Read, Share: "uid 1"})
			if err == nil {
				working <- struct{}{}
				time.Sleep(100 * time.Microsecond)
				<-working
				end()
			}
			done <- err
		}()
	}
	other := 0
	for i := 0; i < 1000; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			i++
		default:
			end, err := w.begin(t.Context(), Peer{Role: Read, Share: "uid 2"})
			if err != nil {
				t.Fatal(err)
			}
			end()
			other++
		}
		most = max(most, len(working))
	}
	if most > maxWork/2 || other == 0 {
		t.Errorf("%d requests of one peer at once, %d of another peer meanwhile", most, other)
	}
	if len(w.shares.holders) != 0 || len(w.slots[Read]) != 0 {
		t.Errorf("left: %v", w.shares.holders)
	}
}

func TestDescriptorsAreRaised(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	// the process can raise the limits again, because it keeps its privileges
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) }()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 512, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	got, err := RaiseDescriptors()
	if err != nil || got < was.Max || got < 4096 {
		t.Errorf("%d, %v; the hard limit was %d", got, err, was.Max)
	}
	if r := rowOf(t, descriptorRows, "descriptors", limits.All()); r.Used < 3 || r.Limit != got {
		t.Errorf("%+v, limit %d", r, got)
	}
}

// Prometheus servers that do not read their responses do not delay others.
func TestScrapersThatDoNotRead(t *testing.T) {
	s, _ := testServers(t, nil, nil)
	work := newWork("test")
	h := work.guard(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) }))
	stuck := make(chan struct{})
	for i := range 2 * maxWork {
		r, _ := http.NewRequestWithContext(WithConn(t.Context(), &Conn{Peer: Peer{Share: fmt.Sprint("192.0.2.", i)}}), "GET", "/metrics", http.NoBody)
		go h.ServeHTTP(stuckWriter{http.Header{}, stuck}, r)
	}
	for range 2 * maxWork {
		<-stuck // earlier handlers are stuck in Write
	}
	if row := rowOf(t, s.LimitRows, "metrics_requests", limits.All()); row.Limit == 0 {
		t.Error("no row")
	}
}

// stuckWriter is a ResponseWriter whose Write never returns.
type stuckWriter struct {
	header  http.Header
	written chan struct{}
}

func (w stuckWriter) Header() http.Header { return w.header }
func (w stuckWriter) WriteHeader(int)     {}
func (w stuckWriter) Write([]byte) (int, error) {
	w.written <- struct{}{}
	select {}
}

// A body that is read after its request was abandoned takes no memory from the quota.
func TestBodyReadAfterRelease(t *testing.T) {
	b := newBodies()
	r, _ := http.NewRequest("POST", "/change", io.NopCloser(bytes.NewReader(make([]byte, 10*freeBody))))
	limited := b.limit(nopWriter{}, r, Peer{Share: "uid 1"})
	if _, err := io.ReadFull(r.Body, make([]byte, 2*freeBody)); err != nil || b.used == 0 {
		t.Fatalf("%v, %d bytes counted", err, b.used)
	}
	limited.release()
	_, err := io.Copy(io.Discard, r.Body)
	if b.used != 0 || err == nil {
		t.Errorf("%d bytes stay counted, error %v", b.used, err)
	}
}

type nopWriter struct{ http.ResponseWriter }
