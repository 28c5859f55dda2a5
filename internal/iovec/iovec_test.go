// SPDX-License-Identifier: Apache-2.0

package iovec

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

// Writev and Readv keep all bytes, however the bytes are divided into vectors.
func TestReadvWritev(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	mem, err := Map(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	vectors, data := View(mem, 3), mem[1024:]
	point := func(i, from, to int) {
		vectors[i] = Vector{Base: Address(data[from:to]), Len: uintptr(to - from)}
	}
	at := Address(mem)

	if n, errno := Readv(pipe[0], at, 0); n > 0 || errno != 0 {
		t.Errorf("no vectors: %d bytes, %v", n, errno)
	}
	point(0, 0, 4)
	if _, errno := Readv(pipe[0], at, 1); errno != unix.EAGAIN {
		t.Errorf("an empty pipe: %v", errno)
	}
	copy(data, "headpayloadtail")
	point(1, 11, 15)
	point(2, 4, 11)
	if n, errno := Writev(pipe[1], at, 3); n != 15 || errno != 0 {
		t.Fatalf("%d bytes written, %v", n, errno)
	}
	clear(data)
	point(0, 100, 101)
	point(1, 200, 210)
	point(2, 300, 400)
	if n, errno := Readv(pipe[0], at, 3); n != 15 || errno != 0 {
		t.Fatalf("%d bytes read, %v", n, errno)
	}
	for _, c := range []struct {
		offset int
		want   string
	}{{100, "h"}, {200, "eadtailpay"}, {300, "load"}} {
		if got := data[c.offset : c.offset+len(c.want)]; !bytes.Equal(got, []byte(c.want)) {
			t.Errorf("at %d: %q, want %q", c.offset, got, c.want)
		}
	}
	vectors[0].Base = 1 // an address that is not mapped
	if _, errno := Writev(pipe[1], at, 1); errno != unix.EFAULT {
		t.Errorf("a bad address: %v", errno)
	}
}

// SendMessages sends messages in order and reports how many the kernel has taken.
func TestSendMessages(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	mem, err := Map(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	messages, vectors, data := Messages(mem, 3), View(mem[1024:], 4), mem[2048:]
	copy(data, "firstsecond")
	vectors[0] = Vector{Base: Address(data), Len: 5}
	vectors[1] = Vector{Base: Address(data[5:]), Len: 3}
	vectors[2] = Vector{Base: Address(data[8:]), Len: 3}
	vectors[3] = Vector{Base: 1, Len: 1} // an address that is not mapped
	messages[0].Set(vectors[:1])
	messages[1].Set(vectors[1:3])
	messages[2].Set(vectors[3:])

	if n, errno := SendMessages(pair[0], messages); n != 2 || errno != 0 {
		t.Fatalf("%d messages sent, %v, want 2", n, errno)
	}
	if _, errno := SendMessages(pair[0], messages[2:]); errno != unix.EFAULT {
		t.Errorf("a bad address: %v", errno)
	}
	for _, want := range []string{"first", "second"} {
		got := make([]byte, 20)
		if n, err := unix.Read(pair[1], got); err != nil || string(got[:n]) != want {
			t.Errorf("received %q, %v, want %q", got[:max(n, 0)], err, want)
		}
	}
}

func TestMapRefuses(t *testing.T) {
	if _, err := Map(0); err == nil {
		t.Error("no bytes were mapped without an error")
	}
}
