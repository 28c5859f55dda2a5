// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"weft/bench"
	"weft/e2e/lab"
)

// The main process of the test calls the process with the guests by net/rpc, over the standard input
// and output of the process with the guests.

// guestsVariable is an environment variable. If it is set, Command runs the guests instead of the
// test.
const guestsVariable = "WEFT_BENCH_CENTRAL_GUESTS"

// guestsNice is the priority of the process with the guests. The guest of a real host would have a CPU
// of its own. With a high priority, guests do not wait until simulated hosts leave a CPU to them.
const guestsNice = "-15"

// GuestService has the methods that the main process of the test calls in the process with the guests.
type GuestService struct{ guests *guests }

// TapRef identifies a guest by the name of its tap and the network namespace of the tap.
type TapRef struct{ Tap, NS string }

// serveGuests runs in the process with the guests. It answers the calls of the main process until the
// main process closes the standard input.
func serveGuests() error {
	s := rpc.NewServer()
	if err := s.Register(&GuestService{&guests{byTap: map[string]*guest{}, series: map[uint16]*pings{}, next: 1}}); err != nil {
		return err
	}
	s.ServeConn(stdio{os.Stdin, os.Stdout})
	return nil
}

type stdio struct {
	io.Reader
	io.WriteCloser
}

// startGuests starts the process with the guests.
func startGuests() *rpc.Client {
	self := lab.Must(os.Executable())
	cmd := exec.Command("nice", append([]string{"-n", guestsNice, self}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), guestsVariable+"=1")
	cmd.Stderr = os.Stderr
	in := lab.Must(cmd.StdinPipe())
	out := lab.Must(cmd.StdoutPipe())
	lab.Check(bench.StartWithParent(cmd))
	return rpc.NewClient(stdio{out, in})
}

func (s *GuestService) guest(r TapRef) (*guest, error) {
	s.guests.mu.Lock()
	defer s.guests.mu.Unlock()
	g := s.guests.byTap[r.Tap+"@"+r.NS]
	if g == nil {
		return nil, fmt.Errorf("there is no guest at %s in %s", r.Tap, r.NS)
	}
	return g, nil
}

// OpenArgs are the arguments of Open: a tap's name, device and namespace.
type OpenArgs struct {
	TapRef
	Dev string
}

// Open opens the packet socket of a guest on its tap.
func (s *GuestService) Open(a OpenArgs, _ *struct{}) error {
	return s.guests.open(a.Tap, a.Dev, a.NS)
}

// DeclareArgs are the arguments of Declare: the guest, and the MAC and IP address that it gets.
type DeclareArgs struct {
	TapRef
	Peer
}

// Declare sets the MAC and IP address of a guest.
func (s *GuestService) Declare(a DeclareArgs, _ *struct{}) error {
	g, err := s.guest(a.TapRef)
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mac, g.ip = a.MAC, a.IP
	return nil
}

// PingArgs are the arguments of Start and FirstAnswer: the guest that sends the pings, the addresses of
// the guest that answers them, and the interval.
type PingArgs struct {
	From     TapRef
	To       Peer
	Interval time.Duration
	Until    time.Duration // time of clock at which FirstAnswer gives up
}

// Start makes a guest send a series of pings. It returns the identifier of the series.
func (s *GuestService) Start(a PingArgs, id *uint16) error {
	g, err := s.guest(a.From)
	if err == nil {
		*id = s.guests.start(g, a.To, a.Interval, false).id
	}
	return err
}

// EndArgs are the arguments of End: the identifiers of series of pings, and how long
// End waits for the last answers.
type EndArgs struct {
	IDs  []uint16
	Wait time.Duration
}

// End stops series of pings, and counts the answered and the lost pings.
func (s *GuestService) End(a EndArgs, list *[]Tally) error {
	var all []*pings
	for _, id := range a.IDs {
		s.guests.mu.Lock()
		p := s.guests.series[id]
		s.guests.mu.Unlock()
		if p == nil {
			return fmt.Errorf("there is no series of pings %d", id)
		}
		p.stop()
		all = append(all, p)
	}
	time.Sleep(a.Wait)
	for _, p := range all {
		*list = append(*list, p.end(0))
	}
	return nil
}

// FirstAnswer sends pings until one is answered. It returns the time of the answer, or 0 if there is
// none.
func (s *GuestService) FirstAnswer(a PingArgs, answered *time.Duration) error {
	g, err := s.guest(a.From)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.Until-clock())
	defer cancel()
	*answered, _ = s.guests.firstAnswer(ctx, g, a.To, a.Interval)
	return nil
}

// MoveArgs are the arguments of Move: the guest's old and new tap, and how long Move waits for a ping.
type MoveArgs struct {
	Old, New TapRef
	Limit    time.Duration
}

// Silence makes a guest stop answering, as if its machine were paused.
func (s *GuestService) Silence(r TapRef, _ *struct{}) error {
	g, err := s.guest(r)
	if err == nil {
		g.setSilent(true)
	}
	return err
}

// Move silences the guest on its old tap and at once announces it on its new tap. It returns the time
// from the announcement to the first ping that arrives at the new tap, or 0 if none arrives within the
// limit.
func (s *GuestService) Move(a MoveArgs, arrival *time.Duration) error {
	old, err := s.guest(a.Old)
	if err != nil {
		return err
	}
	moved, err := s.guest(a.New)
	if err != nil {
		return err
	}
	arrived := moved.awaken(old)
	began := clock()
	// error ignored: without an announcement, no ping arrives and Move returns 0
	_, _ = moved.file.Write(rarp(moved.mac))
	select {
	case at := <-arrived:
		*arrival = at - began
	case <-time.After(a.Limit):
	}
	return nil
}

// Drops returns how many frames the kernel has dropped because the receive buffers of guests were
// full.
func (s *GuestService) Drops(_ struct{}, n *uint64) error {
	s.guests.mu.Lock()
	defer s.guests.mu.Unlock()
	for _, g := range s.guests.byTap {
		*n += g.dropped()
	}
	return nil
}

// clock returns a monotonic time, which is the same in all processes of the machine.
func clock() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail: every Linux has this clock
	return time.Duration(now.Nano())
}
