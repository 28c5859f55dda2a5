// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"weft/e2e/lab"
	"weft/internal/iovec"
)

// The functions below measure round trips. Two processes exchange datagrams, one at a time. Their
// threads block in the kernel, so the times do not include the Go scheduler.

const (
	pingVerb     = "pingpong-ping"
	pongVerb     = "pingpong-pong"
	pingPongPort = 7777
)

// roundTripTimes is what ping prints. The quantiles are in seconds.
type roundTripTimes struct {
	Count, Lost int64
	Within      map[string]float64
}

// roundTripQuantiles are the quantiles in percent that are noted as secondary results. The median is
// also the result itself.
var roundTripQuantiles = map[string]float64{"50th": 50, "90th": 90, "99th": 99, "99.9th": 99.9, "99.99th": 99.99}

// endpointSocket is a UDP socket that is used by raw system calls. They do not involve the Go
// scheduler.
type endpointSocket struct {
	fd      int
	mem     []byte
	vectors []iovec.Vector
}

const (
	maxDatagram = 2048
	// receiveTimeout is the time after which a datagram without an answer counts as lost.
	receiveTimeout = 200 * time.Millisecond
)

func newEndpointSocket() *endpointSocket {
	runtime.LockOSThread()
	fd := lab.Must(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
	mem := lab.Must(iovec.Map(64 + maxDatagram))
	e := &endpointSocket{fd: fd, mem: mem, vectors: iovec.View(mem, 1)}
	timeout := unix.NsecToTimeval(receiveTimeout.Nanoseconds())
	lab.Check(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	return e
}

func (e *endpointSocket) datagram() []byte { return e.mem[64:] }

// read waits for a datagram. It returns EAGAIN after receiveTimeout.
func (e *endpointSocket) read() (int, unix.Errno) {
	e.vectors[0] = iovec.Vector{Base: iovec.Address(e.datagram()), Len: maxDatagram}
	// The Go runtime interrupts a thread in a raw system call every 10 ms, and the kernel's timeout
	// then starts anew. iovec.Readv repeats interrupted calls. Without a datagram, it would therefore
	// never return.
	for began := time.Now(); ; {
		n, _, errno := unix.RawSyscall(unix.SYS_READV, uintptr(e.fd), iovec.Address(e.mem), 1)
		if errno != unix.EINTR {
			return int(n), errno
		}
		if time.Since(began) >= receiveTimeout {
			return 0, unix.EAGAIN
		}
	}
}

func (e *endpointSocket) write(n int) unix.Errno {
	e.vectors[0] = iovec.Vector{Base: iovec.Address(e.datagram()), Len: uintptr(n)}
	_, errno := iovec.Writev(e.fd, iovec.Address(e.mem), 1)
	return errno
}

// mayGoOn reports whether an error means only that a datagram was lost or that the receiver has not
// started yet.
func mayGoOn(errno unix.Errno) bool { return errno == unix.EAGAIN || errno == unix.ECONNREFUSED }

// pong returns each datagram to the first sender, until the process is killed.
func pong([]string) {
	e := newEndpointSocket()
	lab.Check(unix.Bind(e.fd, &unix.SockaddrInet4{Port: pingPongPort}))
	for {
		_, from, err := unix.Recvfrom(e.fd, e.datagram(), unix.MSG_PEEK)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		lab.Check(err)
		lab.Check(unix.Connect(e.fd, from))
		break
	}
	for {
		n, errno := e.read()
		if errno == 0 {
			errno = e.write(n)
		}
		if errno != 0 && !mayGoOn(errno) {
			lab.Check(errno)
		}
	}
}

// pingSpec is the task of the process that measures round trips.
type pingSpec struct {
	To     netip.Addr
	Size   int // length of a datagram in bytes, from 8 to maxDatagram
	Length time.Duration
}

// ping sends a datagram, waits for the answer, and sends the next one. In the end it prints the
// round-trip times.
func ping(args []string) {
	var spec pingSpec
	readTask(args, &spec)
	e := newEndpointSocket()
	lab.Check(unix.Connect(e.fd, &unix.SockaddrInet4{Port: pingPongPort, Addr: spec.To.As4()}))
	const warmUp = 300 * time.Millisecond
	h := hdrhistogram.New(1, int64(10*time.Second), 3)
	lost, start := int64(0), time.Now()
	for number := uint64(1); ; number++ {
		sent := time.Now()
		if sent.Sub(start) > warmUp+spec.Length {
			break
		}
		binary.LittleEndian.PutUint64(e.datagram(), number)
		errno := e.write(spec.Size)
		for errno == 0 { // skip late answers
			if _, errno = e.read(); errno == 0 && binary.LittleEndian.Uint64(e.datagram()) == number {
				break
			}
		}
		switch {
		case mayGoOn(errno):
			lost++
		case errno != 0:
			lab.Check(errno)
		case sent.Sub(start) > warmUp:
			_ = h.RecordValue(int64(time.Since(sent)))
		}
	}
	times := roundTripTimes{Count: h.TotalCount(), Lost: lost, Within: map[string]float64{}}
	for name, q := range roundTripQuantiles {
		times.Within[name] = float64(h.ValueAtQuantile(q)) / 1e9
	}
	sayReport(times)
}

// roundTrips returns the median round-trip time, in seconds, of datagrams of size bytes.
func (o *overlayRig) roundTrips(size int) float64 {
	self := lab.Must(os.Executable())
	p := o.startSelf("pong", o.guest(1), pongVerb)
	length := max(time.Second, o.length)
	client := netnsCommand(o.guest(0), "timeout", fmt.Sprint((length + 10*time.Second).Seconds()), // a time limit, because a broken path must not delay the other experiments
		self, pingVerb, taskText(pingSpec{netip.MustParseAddr(overlayAddress(1)), size, length}))
	out, err := command(nil, client[0], client[1:]...)
	lab.Check(errors.Join(err, p.alive()))
	var times roundTripTimes
	if err := json.Unmarshal([]byte(out), &times); err != nil {
		lab.Check(fmt.Errorf("round trips: %w", err))
	}
	if times.Count == 0 {
		lab.Check(errors.New("round trips: nothing came back"))
	}
	for name, within := range times.Within {
		o.note(name, "s", within)
	}
	o.note("lost", "", float64(times.Lost))
	return times.Within["50th"]
}
