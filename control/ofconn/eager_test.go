// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// unixPair returns the two ends of a connection of a unix socket.
func unixPair(t *testing.T) (ours, peer net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if peer, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if ours, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close(); peer.Close() })
	return ours, peer
}

// A reader that polls gets the same bytes as one that waits. It waits again after
// maxEager messages, when nothing arrives, and for the end of the connection.
func TestEagerReader(t *testing.T) {
	ours, peer := unixPair(t)
	r := newEagerReader(ours)
	buf := make([]byte, 8)
	for i := range 3 * maxEager {
		r.quick = true // as if the last message had come at once
		if _, err := peer.Write([]byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		n, err := r.Read(buf)
		if n != 1 || err != nil || buf[0] != byte(i) {
			t.Fatalf("message %d: %d bytes, %d, %v", i, n, buf[0], err)
		}
		if want := (i + 1) % (maxEager + 1); r.polls != want {
			t.Fatalf("message %d: %d messages polled in a row, want %d", i, r.polls, want)
		}
	}
	r.quick = true
	if err := ours.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a read after the deadline: %v", err)
	}
	if err := ours.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	peer.Close()
	r.quick = true
	if n, err := r.Read(buf); n != 0 || err != io.EOF {
		t.Errorf("a read at the end: %d, %v", n, err)
	}
}
