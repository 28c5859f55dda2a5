// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/testnet"
)

// Each of the namespaces a and b has a server process. The test itself forwards frames between them.
// It can lose, repeat or delay frames:
//
//	a ──veth── middle (the test) ──veth── b
//	10.77.0.1                     10.77.0.2
//
// The test gives orders to the server in a over a unix socket.

const serveVariable = "WEFT_TRAFFIC_TEST_SERVE"

func TestMain(m *testing.M) {
	if where := os.Getenv(serveVariable); where != "" {
		if err := serveForTest(strings.Fields(where)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveForTest runs a server. Its arguments are the link and the addresses on which the server
// listens.
func serveForTest(words []string) error {
	server := &Server{Link: words[0], Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	errs := make(chan error)
	for _, address := range words[1:] {
		l, err := Listen(address)
		if err != nil {
			return err
		}
		go func() { errs <- server.Serve(context.Background(), l) }()
	}
	return <-errs
}

type rig struct {
	t      *testing.T
	orders string // unix socket of the server in namespace a
	mangle mangler
}

// mangler returns the frames to forward in place of data frame n of one direction.
type mangler func(n int, frame []byte) [][]byte

func newRig(t *testing.T, mangle mangler) *rig {
	t.Helper()
	a, b := testnet.New(t), testnet.New(t)
	r := &rig{t: t, orders: filepath.Join(t.TempDir(), "a"), mangle: mangle}
	if mangle == nil {
		testnet.Join(a, "v", b, "v")
	} else {
		middle := testnet.New(t)
		testnet.Join(a, "v", middle, "va")
		testnet.Join(b, "v", middle, "vb")
		r.forward(middle)
		for _, n := range []*testnet.Namespace{a, b} {
			n.Exec("ethtool", "-K", "v", "tx", "off") // offload would leave checksums unfinished
		}
	}
	a.Exec("ip", "addr", "add", "10.77.0.1/24", "dev", "v")
	b.Exec("ip", "addr", "add", "10.77.0.2/24", "dev", "v")
	r.serve(a, "v unix:"+r.orders)
	r.serve(b, "v 10.77.0.2:5210 unix:"+r.orders+"b")
	for _, path := range []string{r.orders, r.orders + "b"} {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if c, err := net.Dial("unix", path); err == nil {
				c.Close()
				break
			} else if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	return r
}

func (r *rig) serve(n *testnet.Namespace, words string) {
	r.t.Helper()
	cmd := n.Command(os.Args[0])
	cmd.Env = append(os.Environ(), serveVariable+"="+words)
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if r.t.Failed() {
			r.t.Log(log.String())
		}
	})
}

func (r *rig) forward(middle *testnet.Namespace) {
	r.t.Helper()
	fds := [2]int{}
	middle.Do(func() {
		for i, name := range []string{"va", "vb"} {
			dev, err := net.InterfaceByName(name)
			if err != nil {
				r.t.Fatal(err)
			}
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				r.t.Fatal(err)
			}
			for _, err := range []error{
				unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 20_000}),
				unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: dev.Index}),
			} {
				if err != nil {
					r.t.Fatal(err)
				}
			}
			fds[i] = fd
		}
	})
	stop, done := make(chan struct{}), make(chan struct{}, 2)
	for i := range fds {
		go func() {
			r.carry(fds[i], fds[1-i], stop)
			done <- struct{}{}
		}()
	}
	r.t.Cleanup(func() {
		close(stop)
		<-done
		<-done
		unix.Close(fds[0])
		unix.Close(fds[1])
	})
}

func (r *rig) carry(from, to int, stop chan struct{}) {
	buf := make([]byte, 1<<16)
	for n := 0; ; {
		select {
		case <-stop:
			return
		default:
		}
		k, err := unix.Read(from, buf)
		if err != nil {
			continue
		}
		out := [][]byte{buf[:k]}
		// The stamp has the same offset in UDP datagrams and in raw frames.
		const at = frameHeaders
		if kind := byte(0); k >= at+stampLen && buf[12] == 8 && buf[23] == 17 {
			if kind = stamp(buf[at:]).kind(); kind == kindData || kind == kindRequest {
				out = r.mangle(n, append([]byte{}, buf[:k]...))
				n++
			}
		}
		for _, f := range out {
			if _, err := unix.Write(to, f); err != nil {
				r.t.Errorf("forward: %v", err)
			}
		}
	}
}

func (r *rig) run(s Spec) *Result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	c := &Client{Server: "10.77.0.2", From: "unix:" + r.orders, Link: "v"}
	if s.Seconds == 0 {
		s.Seconds = 5
	}
	got, err := c.Run(ctx, s)
	if err != nil {
		r.t.Fatalf("%+v: %v", s, err)
	}
	return got
}

func mean(m Mix, frames uint64) (bytes uint64) {
	round := m.round()
	for i := range frames {
		bytes += uint64(round[i%uint64(len(round))])
	}
	return bytes
}

// Without loss, the receiver counts exactly the frames and bytes that were sent after the warm-up.
func TestCountsAreExact(t *testing.T) {
	r := newRig(t, nil)
	small, frames := Mix{{30, 2}, {900, 1}}, imix
	for _, s := range []Spec{
		{Protocol: UDP, Sizes: small, Streams: 3, Count: 1000, PerSecond: 20_000},
		{Protocol: UDP, Sizes: small, Count: 1000, PerSecond: 20_000, Warmup: 0.05, Reverse: true},
		{Protocol: Raw, Sizes: frames, Streams: 2, Count: 1000, PerSecond: 20_000, Flows: 10},
		{Protocol: Raw, Sizes: frames, Count: 1000, BitsPerSecond: 50e6, Warmup: 0.05, Reverse: true},
	} {
		got := r.run(s)
		for i, st := range got.Streams {
			if st.Sent != (Totals{1000, mean(s.Sizes, 1000)}) || st.Received != st.Sent || st.Lost+st.Duplicates+st.Reordered+st.Late != 0 {
				t.Errorf("%+v: stream %d: %+v", s, i, st)
			}
		}
		if got.Latency == nil || got.Latency.Count != int64(1000*len(got.Streams)) || got.Latency.ClockError != 0 || len(got.Intervals) == 0 {
			t.Errorf("%+v: latency %v, intervals %v", s, got.Latency != nil, got.Intervals)
		}
	}
	for _, s := range []Spec{
		{Protocol: TCP, Sizes: Mix{{5000, 1}}, Streams: 2, Count: 500},
		{Protocol: TCP, Sizes: Mix{{5000, 1}}, Count: 500, Reverse: true, Warmup: 0.05, PerSecond: 10_000},
	} {
		for i, st := range r.run(s).Streams {
			if st.Sent != (Totals{500, 2_500_000}) || st.Received.Bytes != 2_500_000 {
				t.Errorf("%+v: stream %d: %+v", s, i, st)
			}
		}
	}
	timed := r.run(Spec{Protocol: TCP, Sizes: Mix{{1 << 17, 1}}, Seconds: 0.2, Streams: 2})
	if timed.Sent.Bytes == 0 || timed.Sent.Bytes != timed.Received.Bytes {
		t.Errorf("interrupted writes: %+v, %+v", timed.Sent, timed.Received)
	}
}

// A measurement that is stopped early returns what it has measured so far, in each direction and mode.
// If it has measured nothing yet, it fails.
func TestStopEarly(t *testing.T) {
	r := newRig(t, nil)
	for _, s := range []Spec{
		{Protocol: TCP, Sizes: Mix{{1 << 17, 1}}},
		{Protocol: TCP, Sizes: Mix{{5000, 1}}, Reverse: true, PerSecond: 1000},
		{Protocol: UDP, Sizes: Mix{{100, 1}}, PerSecond: 1000, Streams: 2},
		{Protocol: UDP, Sizes: Mix{{100, 1}}, PerSecond: 1000, Reverse: true},
		{Protocol: TCP, Mode: Request, Sizes: Mix{{100, 1}}, PerSecond: 1000},
	} {
		s.Seconds = 3600
		stop := make(chan struct{})
		c := &Client{Server: "10.77.0.2", From: "unix:" + r.orders, Every: 20 * time.Millisecond, Stop: stop}
		var once sync.Once
		c.Progress = func(i Interval, measured bool) {
			if measured && i.Frames+i.Bytes > 0 {
				once.Do(func() { close(stop) })
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		got, err := c.Run(ctx, s)
		cancel()
		if err != nil || got.Sent.Bytes == 0 || got.Received.Bytes == 0 || got.Seconds <= 0 || got.Seconds > 60 {
			t.Errorf("%+v: %+v, %v", s, got, err)
		}
	}
	stop := make(chan struct{})
	close(stop)
	c := &Client{Server: "10.77.0.2", From: "unix:" + r.orders, Stop: stop}
	if _, err := c.Run(context.Background(), Spec{Protocol: UDP, Sizes: Mix{{100, 1}}, PerSecond: 10, Seconds: 5, Warmup: 5}); err == nil || !strings.Contains(err.Error(), errWarm.Error()) {
		t.Errorf("stopped in the warm-up: %v", err)
	}
}

// Each request gets exactly one response.
func TestRequests(t *testing.T) {
	r := newRig(t, nil)
	for _, s := range []Spec{
		{Protocol: TCP, Mode: Request, Sizes: Mix{{100, 1}}, Response: 3000, Streams: 2, Count: 200},
		{Protocol: TCP, Mode: Connect, Sizes: Mix{{100, 1}}, Response: 3000, Streams: 2, Count: 50},
		{Protocol: UDP, Mode: Request, Sizes: Mix{{100, 1}}, Response: 1400, Streams: 2, Count: 200},
		{Protocol: UDP, Mode: Request, Sizes: Mix{{100, 1}}, Response: 60, Count: 200, PerSecond: 4000, Warmup: 0.05},
		{Protocol: Raw, Mode: Request, Sizes: Mix{{100, 1}}, Streams: 4, Count: 200},
	} {
		got := r.run(s)
		back := s.Response
		if back == 0 {
			back = 100
		}
		for i, st := range got.Streams {
			if st.Sent != (Totals{s.Count, 100 * s.Count}) || st.Received != (Totals{s.Count, uint64(back) * s.Count}) || st.Lost+st.Late != 0 {
				t.Errorf("%+v: stream %d: %+v", s, i, st)
			}
		}
		if got.Latency == nil || got.Latency.Count != int64(s.Count)*int64(len(got.Streams)) {
			t.Errorf("%+v: latency %v, intervals %v", s, got.Latency != nil, got.Intervals)
		}
	}
}

// The numbers of lost, duplicate and reordered frames are exact.
func TestLossAndReordering(t *testing.T) {
	held := [][]byte{}
	newMangler := func() mangler {
		return func(n int, f []byte) [][]byte {
			switch n % 10 {
			case 1:
				return nil
			case 3:
				return [][]byte{f, f}
			case 5:
				held = [][]byte{f}
				return nil
			case 7:
				return append([][]byte{f}, held...)
			}
			return [][]byte{f}
		}
	}
	r := newRig(t, newMangler())
	for _, protocol := range []string{UDP, Raw} {
		st := r.run(Spec{Protocol: protocol, Sizes: Mix{{200, 1}}, Count: 1000, PerSecond: 10_000}).Streams[0]
		if st.Sent.Frames != 1000 || st.Received.Frames != 900 || st.Lost != 100 || st.Duplicates != 100 || st.Reordered != 100 || st.Distance != 2 {
			t.Errorf("%s: %+v", protocol, st)
		}
	}
}

// A request without a response counts as lost. The client does not repeat it.
func TestLostRequests(t *testing.T) {
	r := newRig(t, func(n int, f []byte) [][]byte {
		if n == 3 {
			return nil
		}
		return [][]byte{f}
	})
	st := r.run(Spec{Protocol: UDP, Mode: Request, Sizes: Mix{{100, 1}}, Count: 10}).Streams[0]
	if st.Sent.Frames != 10 || st.Received.Frames != 9 || st.Lost != 1 {
		t.Errorf("%+v", st)
	}
}

// A measurement that fails returns at once, with an error of one line that names the cause.
func TestFailures(t *testing.T) {
	r := newRig(t, nil)
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	spec := Spec{Seconds: 1}
	for _, c := range []struct {
		client Client
		spec   Spec
		word   string
	}{
		{Client{Server: "127.0.0.1:1"}, spec, "weft bench server"},
		{Client{Server: "unix:/nonexistent"}, spec, "/nonexistent"},
		{Client{Server: "vsock:x:1"}, spec, "vsock:CID:PORT"},
		{Client{Server: "unix:" + r.orders}, spec, "network"},
		{Client{Server: "10.77.0.2", From: "unix:" + r.orders, Link: "none"}, Spec{Protocol: Raw, Seconds: 1}, "none: no such device"},
		{Client{Server: "10.77.0.2", From: "unix:" + r.orders, Link: "v"}, Spec{Protocol: Raw, Seconds: 1, Sizes: Mix{{1515, 1}}}, "MTU is 1500"},
		{Client{Server: "10.77.0.2:1", From: "unix:" + r.orders}, spec, "10.77.0.2:1"},
	} {
		if _, err := c.client.Run(ctx, c.spec); err == nil || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, expected %q", c.client, err, c.word)
		}
	}
	// This server closes its connection during a measurement.
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "dies"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}()
	if err := (&control{conn: closedConn(t)}).send(message{}); !errors.Is(err, errGone) {
		t.Errorf("sent to nobody: %v", err)
	}
	dies := Client{Server: "x", From: "unix:" + l.Addr().String()}
	if _, err := dies.Run(ctx, spec); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Error(err)
	}
}

func closedConn(t *testing.T) net.Conn {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "closed"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	other.Close()
	return c
}

// If the server speaks another protocol, the client's error says so.
func TestAnotherProgramAnswers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		_, _ = io.Copy(io.Discard, c) // reads until the client disconnects
	}()
	c := Client{Server: l.Addr().String()}
	_, err = c.Run(context.Background(), Spec{Protocol: TCP, Mode: Stream, Streams: 1, Seconds: 1, Flows: 1, Sizes: Mix{{Size: 1000, Count: 1}}})
	if err == nil || !strings.Contains(err.Error(), "no weft bench") {
		t.Error(err)
	}
}
