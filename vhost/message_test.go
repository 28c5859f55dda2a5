// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// opener is a Backend that opens each device in the test's own process.
type opener struct {
	t      *testing.T
	opened bool
}

func (o *opener) Start(spec []byte, fds []int) error {
	if o.opened {
		o.t.Error("started twice")
	}
	own := make([]int, len(fds))
	for i, fd := range fds {
		own[i], _ = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	}
	d, err := Open(spec, own)
	if err != nil {
		return err
	}
	d.Close()
	o.opened = true
	return nil
}

func (o *opener) Stop() ([]byte, error) { o.opened = false; return nil, nil }
func (o *opener) Changed()              {}

// FuzzMessages sends arbitrary sequences of requests. The session must neither panic nor leak a
// descriptor. A new session that is restored from the state must continue.
func FuzzMessages(f *testing.F) {
	addr := binary.LittleEndian.AppendUint64(make([]byte, 8), 0x10000)
	addr = binary.LittleEndian.AppendUint64(addr, 0x12000)
	addr = binary.LittleEndian.AppendUint64(addr, 0x11000)
	addr = append(addr, make([]byte, 8)...)
	region := func(size uint64) []byte {
		b := binary.LittleEndian.AppendUint64(nil, 0)
		b = binary.LittleEndian.AppendUint64(b, size)
		b = binary.LittleEndian.AppendUint64(b, 0x10000)
		return binary.LittleEndian.AppendUint64(b, 0)
	}
	u64, pair := u64Payload, func(i, n uint32) []byte { return u64Payload(uint64(i) | uint64(n)<<32) }
	var whole []byte
	step := func(request, fds byte, payload []byte) { whole = append(append(whole, request, fds), payload...) }
	step(2, 0, u64(1<<30))
	step(5, 1<<4|1, append(pair(1, 0), region(1<<16)...))
	for i := range uint32(2) {
		addr[0] = byte(i)
		step(8, 0, pair(i, 16))
		step(9, 0, addr)
		step(12, 1, u64(uint64(i)))
		step(13, 0, u64(uint64(i)|1<<8))
		step(18, 0, pair(i, 1))
	}
	step(11, 0, pair(1, 0))
	f.Add(whole)
	f.Add([]byte{37, 1<<4 | 1, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{5, 1<<4 | 3, 3, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(fuzzMessages)
}

func fuzzMessages(t *testing.T, data []byte) {
	before := countFiles(t)
	s, err := newSession(Config{Queues: 2}, &opener{t: t})
	if err != nil {
		t.Fatal(err)
	}
	for len(data) >= 2 {
		request, kind := data[0]%uint8(len(table)), data[1]
		data = data[2:]
		r := &table[request]
		if r.run == nil {
			continue
		}
		m := message{request: uint32(request), payload: make([]byte, payloadSize(r, kind))}
		data = data[copy(m.payload, data):]
		for range min(int(kind&15), r.fds) {
			m.fds = append(m.fds, makeFD(t, kind>>4))
		}
		reply, err := r.run(s, &m)
		closeAll(m.untaken())
		if err == nil && r.reply != (reply != nil) {
			t.Fatalf("%s: reply %x", r.name, reply)
		}
		if !s.running && s.front.ready() {
			_ = s.start()
		}
	}
	parts := s.Snapshot()
	restored, err := Restore(Config{Queues: 2, Client: true}, &opener{t: t, opened: s.running}, parts)
	if err != nil {
		t.Fatalf("state cannot be restored: %v", err)
	}
	if a, b := restored.Status(), s.Status(); a.Memory != b.Memory || len(a.Vrings) != len(b.Vrings) || a.Running != b.Running {
		t.Fatalf("restored %+v, was %+v", a, b)
	}
	restored.Close()
	s.Close()
	if after := countFiles(t); after > before {
		t.Fatalf("%d descriptors open, %d before", after, before)
	}
}

func payloadSize(r *row, kind byte) int {
	if r.size == sizeTable {
		return 8 + int(kind&7)*regionLen
	}
	return r.size
}

func makeFD(t *testing.T, kind byte) int {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if kind&1 != 0 {
		unix.Close(fd)
		if fd, err = unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC); err == nil {
			err = unix.Ftruncate(fd, 1<<16)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func countFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// FuzzHeader compares parseHeader with a simple reference implementation.
func FuzzHeader(f *testing.F) {
	f.Add(uint32(1), uint32(1), uint32(0))
	f.Add(uint32(5), uint32(9), uint32(264))
	f.Add(uint32(6), uint32(1), uint32(8))
	f.Add(uint32(31), uint32(1), uint32(24))
	f.Add(uint32(32), uint32(9), uint32(20))
	f.Add(uint32(1<<31), uint32(1), uint32(1<<31))
	f.Fuzz(func(t *testing.T, request, flags, size uint32) {
		var b [messageHeaderLen]byte
		binary.LittleEndian.PutUint32(b[0:], request)
		binary.LittleEndian.PutUint32(b[4:], flags)
		binary.LittleEndian.PutUint32(b[8:], size)
		m, r, n, err := parseHeader(&b)
		good := request < 41 && table[request].run != nil && flags&3 == 1 && flags&4 == 0
		if good && request == 5 {
			good = size >= 8 && size <= 8+8*32
		} else if good && (request == 31 || request == 32) { // the payload may be padded to 24 bytes
			good = size == 20 || size == 24
		} else if good {
			good = size == uint32(table[request].size)
		}
		if good != (err == nil) {
			t.Fatalf("request %d, flags %#x, size %d: %v", request, flags, size, err)
		}
		if good && (n != int(size) || n > maxPayload || m.request != request || m.flags != flags || r != &table[request]) {
			t.Fatalf("request %d: %+v, %d", request, m, n)
		}
	})
}

// TestStalled: a message that ends early or stalls is an error. Silence between two messages is none.
func TestStalled(t *testing.T) {
	header := func(request, size uint32) []byte {
		b := binary.LittleEndian.AppendUint32(nil, request)
		b = binary.LittleEndian.AppendUint32(b, flagVersion)
		return binary.LittleEndian.AppendUint32(b, size)
	}
	for _, test := range []struct {
		sent  []byte
		close bool
		want  string
	}{
		{nil, false, errQuiet.Error()},
		{header(2, 8)[:3], false, "header: stalled"},
		{header(2, 8), false, "SET_FEATURES: payload: stalled"},
		{append(header(2, 8), 1, 2, 3), true, "SET_FEATURES: payload: unexpected EOF"},
		{header(2, 8)[:11], true, "header: unexpected EOF"},
		{nil, true, "EOF"},
	} {
		near, far := socketPair(t)
		w := &wire{conn: near, stop: context.Background(), timeout: 20 * time.Millisecond}
		if _, err := far.Write(test.sent); err != nil {
			t.Fatal(err)
		}
		if test.close {
			far.Close()
		}
		if _, _, err := w.nextMessage(w.timeout); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%d bytes, closed %v: %v, expected %q", len(test.sent), test.close, err, test.want)
		}
	}
}

func socketPair(t *testing.T) (near, far *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { c.Close() })
	}
	return ends[0], ends[1]
}

// TestOrder: each store with release semantics, in assembly and in Go, changes only its own word.
func TestOrder(t *testing.T) {
	words := [3]uint32{1, 2, 3}
	storeRelease32(&words[1], 0xdeadbeef)
	fence()
	if words != [3]uint32{1, 0xdeadbeef, 3} {
		t.Fatalf("%x", words)
	}
}

// A session ends without waiting for a front end that reads no replies.
func TestReplyIsInterrupted(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(pair[0]), "session")
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	defer conn.Close()
	defer unix.Close(pair[1])
	stop, cancel := context.WithCancel(t.Context())
	w := &wire{conn: conn.(*net.UnixConn), stop: stop, timeout: time.Hour}
	_ = conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for err == nil { // fill the socket
		_, err = conn.Write(w.body[:messageHeaderLen])
	}
	ended := make(chan error)
	go func() { ended <- w.reply(&message{request: 1}, u64Payload(0)) }()
	time.Sleep(10 * time.Millisecond)
	cancel()
	w.interrupt()
	for _, when := range []string{"under way", "afterwards"} {
		select {
		case err := <-ended:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("reply %s: %v", when, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("reply %s: blocks", when)
		}
		go func() { ended <- w.reply(&message{request: 1}, u64Payload(0)) }()
	}
	<-ended
}
