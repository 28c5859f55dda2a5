// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// Port attaches this process as a guest to a vhost-user port. One goroutine may send
// while another receives.
type Port struct {
	guest    *vhosttest.Guest
	front    *vhosttest.FrontEnd
	path     string
	created  bool // true: this process created the socket and removes it
	received [][]byte
	bufs     [][]byte
	// Spin is the time for which Recv polls before it sleeps. OpenPort sets it to about the cost of
	// one wake-up.
	Spin time.Duration
	// Waits counts how often Recv has slept.
	Waits uint64
}

const (
	ringSize = 1024
	// spin is about the cost of one wake-up.
	spin = 20 * time.Microsecond
)

// OpenPort attaches to the vhost-user socket at path. It connects to an existing socket, as QEMU does
// to a port with mode=server. If there is none, it creates the socket, and the switch connects. size
// is the length of the longest frame in bytes.
func OpenPort(path string, size int) (*Port, error) {
	// with VIRTIO_F_EVENT_IDX, a guest that wakes up late gets a single call
	const features = vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureEventIndex
	g, err := vhosttest.New(vhosttest.Options{Num: ringSize, Features: features, BufLen: (size + 12 + 63) &^ 63, Interrupts: true})
	if err != nil {
		return nil, err
	}
	p := &Port{guest: g, path: path, Spin: spin}
	if err := p.connect(); err != nil {
		p.Close()
		return nil, fmt.Errorf("vhost-user socket %s: %w", path, err)
	}
	for range batch {
		p.bufs = append(p.bufs, make([]byte, 0, size))
	}
	p.guest.Rx[0].WantCalls(false)
	p.guest.Tx[0].WantCalls(false)
	return p, nil
}

func (p *Port) connect() error {
	var err error
	if p.front, err = vhosttest.Dial(p.path); err == nil {
		return p.front.Attach(p.guest)
	}
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) {
		return err
	}
	if _, err := os.Stat(filepath.Dir(p.path)); err != nil {
		return err
	}
	l, err := vhosttest.ListenFront(p.path)
	if err != nil {
		return err
	}
	defer l.Close()
	p.created = true
	if p.front, err = vhosttest.Accept(l); err != nil {
		return fmt.Errorf("no switch connects: %w", err)
	}
	return p.front.Attach(p.guest)
}

// Close detaches the guest and frees its memory.
func (p *Port) Close() {
	if p.front != nil {
		p.front.Close()
	}
	p.guest.Close()
	if p.created {
		os.Remove(p.path)
	}
}

// Send queues frames in order, and returns the number of frames for which the ring had room.
func (p *Port) Send(frames [][]byte) int {
	q := p.guest.Tx[0]
	n := 0
	for _, f := range frames {
		if !q.Send(f) {
			break
		}
		n++
	}
	q.Publish()
	return n
}

// Recv returns received frames, which are valid until the next call. If there are none, it polls for
// the time Spin, and then sleeps until a frame arrives or the time wait is over.
func (p *Port) Recv(wait time.Duration) [][]byte {
	q := p.guest.Rx[0]
	p.take()
	if len(p.received) > 0 || wait <= 0 {
		return p.received
	}
	for start := time.Now(); time.Since(start) < min(p.Spin, wait); {
		if p.take(); len(p.received) > 0 {
			return p.received
		}
	}
	q.WantCalls(true)
	if p.take(); len(p.received) == 0 {
		p.Waits++
		q.WaitCall(max(wait, time.Millisecond))
		p.take()
	}
	q.WantCalls(false)
	return p.received
}

func (p *Port) take() {
	q := p.guest.Rx[0]
	p.received = p.received[:0]
	for len(p.received) < batch {
		i := len(p.received)
		frame, _, ok := q.Recv(p.bufs[i][:0])
		if !ok {
			break
		}
		p.bufs[i] = frame
		p.received = append(p.received, frame)
	}
	if len(p.received) > 0 {
		q.Refill()
	}
}

// Drained reports whether the switch has released the buffers of all sent frames.
func (p *Port) Drained() bool {
	q := p.guest.Tx[0]
	q.Reclaim()
	return q.Free() == q.Slots()
}

// portLink is a link over a Port.
type portLink struct {
	*Port
	*framer
	mac net.HardwareAddr
}

func openGuest(path string, s *Spec) (link, error) {
	p, err := OpenPort(path, s.largestFrame())
	if err != nil {
		return nil, err
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0} // 2 marks a locally administered MAC address
	rand.Read(mac[1:])
	return &portLink{Port: p, mac: mac}, nil
}

func (p *portLink) address() net.HardwareAddr { return p.mac }

func (p *portLink) towards(peer net.HardwareAddr, server bool, flows int) {
	p.framer = newFramer(p.mac, peer, server, flows)
}

func (p *portLink) send(frames [][]byte) (int, error) {
	n := p.Send(frames)
	if n == 0 {
		time.Sleep(spin) // the switch empties the ring without contention for its cache lines
	}
	return n, nil
}

func (p *portLink) recv(wait time.Duration) ([][]byte, error) { return p.Recv(wait), nil }

func (p *portLink) dropped() uint64 { return 0 } // without a free buffer, the switch drops and counts the frame

func (p *portLink) close() {
	for start := time.Now(); !p.Drained() && time.Since(start) < quiet; {
		time.Sleep(napMin)
	}
	p.Close()
}
