// SPDX-License-Identifier: Apache-2.0

package port

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// recorder logs its Close, and whether its descriptor was still open then.
type recorder struct {
	name string
	log  *[]string
	fd   int
}

func (r recorder) Fault() string { return r.name }

func (r recorder) Close() {
	state := " open"
	if _, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFD, 0); err != nil {
		state = " closed"
	}
	*r.log = append(*r.log, r.name+state)
}

type (
	rxQueue struct{ Rx }
	txQueue struct{ Tx }
	rxOf    struct {
		rxQueue
		recorder
	}
	txOf struct {
		txQueue
		recorder
	}
)

// Queues keep their order. Close closes each of them once, before their descriptors.
func TestQueues(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	var log []string
	note := func(name string) recorder { return recorder{name: name, log: &log, fd: pipe[0]} }
	d := &Queues{FDs: pipe[:]}
	d.AddRx(rxOf{recorder: note("rx0")})
	d.AddTx(txOf{recorder: note("tx0")})
	d.AddRx(rxOf{recorder: note("rx1")})
	if len(d.Rx()) != 2 || len(d.Tx()) != 1 || d.Rx()[1].Fault() != "rx1" || d.State() != nil {
		t.Fatalf("queues %v %v, state %q", d.Rx(), d.Tx(), d.State())
	}
	d.Close()
	d.Close()
	if want := []string{"rx0 open", "rx1 open", "tx0 open"}; !slices.Equal(log, want) {
		t.Errorf("closed %q, want %q", log, want)
	}
	if _, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor is still there: %v", err)
	}
}
