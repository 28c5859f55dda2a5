// SPDX-License-Identifier: Apache-2.0

package central

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// guest is a simulated guest behind a tap of a real switch. It sends ICMP echo requests through a
// packet socket, and answers those that it receives.
type guest struct {
	group *guests
	file  *os.File
	fd    int // of file

	mu      sync.Mutex // guards the fields below
	mac     [6]byte
	ip      netip.Addr
	silent  bool               // the guest sends no answers, as if its machine were paused
	arrived chan time.Duration // receives the time of the next ping that arrives; nil: nobody waits for one
	// number of frames that did not fit into the socket's buffer, up to the last call of dropped
	drops uint64
}

// guests has the guests of all hosts. They are in one process, so one clock measures both ends of a
// ping. The simulated hosts run in another process, because a thousand of them would delay the pings.
// The pings would then leave in bursts and overflow queues.
type guests struct {
	mu     sync.Mutex // guards the fields below
	byTap  map[string]*guest
	series map[uint16]*pings // running series of pings, by identifier
	next   uint16            // identifier of the next series
}

// guestBuffer is the size in bytes of a guest's receive buffer. When the buffer is full, the kernel
// drops frames and counts them (guest.dropped).
const guestBuffer = 8 << 20

// open opens the socket of the tap dev in the network namespace ns.
func (gs *guests) open(tap, dev, ns string) error {
	g := &guest{group: gs}
	err := inNamespace(ns, func() error {
		nic, err := net.InterfaceByName(dev)
		if err != nil {
			return err
		}
		const protocol = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8 // in network byte order
		if g.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol); err != nil {
			return err
		}
		g.file = os.NewFile(uintptr(g.fd), dev)
		if err := unix.SetsockoptInt(g.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, guestBuffer); err != nil {
			return err
		}
		return unix.Bind(g.fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: nic.Index})
	})
	if err != nil {
		return fmt.Errorf("tap %s: %w", tap, err)
	}
	gs.mu.Lock()
	gs.byTap[tap+"@"+ns] = g
	gs.mu.Unlock()
	go g.receive()
	return nil
}

// inNamespace calls f on a thread that is in the named network namespace. Sockets that f opens stay in
// this namespace.
func inNamespace(name string, f func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread is never unlocked, so Go ends it with the goroutine
		ns, err := netns.GetFromName(name)
		if err != nil {
			failed <- err
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			failed <- err
			return
		}
		failed <- f()
	}()
	return <-failed
}

// receive handles the frames that the switch sends to the guest. It returns when the socket is closed.
func (g *guest) receive() {
	frame := make([]byte, 2048)
	for {
		n, err := g.file.Read(frame)
		if err != nil {
			return
		}
		if f := frame[:n]; n >= pingSize && f[ipStart] == 0x45 && f[ipStart+9] == unix.IPPROTO_ICMP {
			g.handle(f)
		}
	}
}

func (g *guest) handle(f []byte) {
	id, sequence := binary.BigEndian.Uint16(f[icmpStart+4:]), binary.BigEndian.Uint16(f[icmpStart+6:])
	g.mu.Lock()
	own := !g.silent && [6]byte(f[0:6]) == g.mac && netip.AddrFrom4([4]byte(f[ipStart+16:])) == g.ip
	g.mu.Unlock()
	if !own {
		return
	}
	g.group.mu.Lock()
	p := g.group.series[id]
	g.group.mu.Unlock()
	switch f[icmpStart] {
	case icmpRequest:
		answer := ping(g.mac, [6]byte(f[6:12]), g.ip, netip.AddrFrom4([4]byte(f[ipStart+12:])), icmpReply, id, sequence)
		_, _ = g.file.Write(answer) // a lost answer counts as a lost ping
		p.note(sequence, (*pings).arrivals)
		g.mu.Lock()
		if g.arrived != nil {
			g.arrived <- clock()
			g.arrived = nil
		}
		g.mu.Unlock()
	case icmpReply:
		p.note(sequence, (*pings).answers)
	}
}

// dropped returns how many frames the kernel has dropped because the guest's receive buffer was full.
func (g *guest) dropped() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s, err := unix.GetsockoptTpacketStats(g.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil { // reading resets the counters
		g.drops += uint64(s.Drops)
	}
	return g.drops
}

func (g *guest) setSilent(silent bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent = silent
}

// awaken lets a moved guest answer at its new tap, and silences it at its old tap. The returned
// channel receives the time of the first ping that arrives at the new tap.
func (g *guest) awaken(old *guest) <-chan time.Duration {
	old.setSilent(true)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.silent, g.arrived = false, make(chan time.Duration, 1)
	return g.arrived
}
