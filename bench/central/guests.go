// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// tap is a port of a real switch and the driver's packet socket on its other end. The
// driver is the guest: it sends ICMP echo requests and answers them.
type tap struct {
	name, dev string
	host      *realHost
	file      *os.File

	mu      sync.Mutex // guards the fields below
	port    *placed    // nil: the port is not declared
	mac     [6]byte
	ip      netip.Addr
	silent  bool               // the guest answers nothing, because it is paused
	arrived chan time.Duration // receives the time of the next ping; nil: nobody waits for it
	replies map[uint16]func(sequence uint16)
}

// declare gives a guest the addresses of a port, and the port the name of the tap.
func (t *tap) declare(p *placed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p.Name = t.name
	t.port = p
	copy(t.mac[:], p.Mac)
	t.ip = addressOf(p)
}

func (t *tap) open() error {
	t.replies = map[uint16]func(uint16){}
	t.host.guests.Run("ip", "link", "set", t.dev, "up")
	err := t.host.guests.Do(func() error {
		nic, err := net.InterfaceByName(t.dev)
		if err != nil {
			return err
		}
		const protocol = unix.ETH_P_IP<<8&0xff00 | unix.ETH_P_IP>>8 // in network byte order
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		if err != nil {
			return err
		}
		t.file = os.NewFile(uintptr(fd), t.dev)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: nic.Index})
	})
	if err != nil {
		return fmt.Errorf("tap %s: %w", t.name, err)
	}
	go t.receive()
	return nil
}

// Offsets and sizes in a ping: Ethernet, IPv4 without options, ICMP.
const (
	ipStart   = 14
	icmpStart = ipStart + 20
	pingSize  = icmpStart + 8 + 32

	icmpRequest, icmpReply = 8, 0
)

// receive handles the frames that the switch sends to the guest, until the socket is
// closed.
func (t *tap) receive() {
	frame := make([]byte, 2048)
	for {
		n, err := t.file.Read(frame)
		if err != nil {
			return
		}
		if f := frame[:n]; n >= pingSize && f[ipStart] == 0x45 && f[ipStart+9] == unix.IPPROTO_ICMP {
			t.handle(f)
		}
	}
}

func (t *tap) handle(f []byte) {
	t.mu.Lock()
	own := !t.silent && [6]byte(f[0:6]) == t.mac && netip.AddrFrom4([4]byte(f[ipStart+16:])) == t.ip
	reply := t.replies[binary.BigEndian.Uint16(f[icmpStart+4:])]
	t.mu.Unlock()
	if !own {
		return
	}
	switch f[icmpStart] {
	case icmpRequest:
		answer := ping(t.mac, [6]byte(f[6:12]), t.ip, netip.AddrFrom4([4]byte(f[ipStart+12:])), icmpReply,
			binary.BigEndian.Uint16(f[icmpStart+4:]), binary.BigEndian.Uint16(f[icmpStart+6:]))
		_, _ = t.file.Write(answer) // a lost answer counts as a lost ping
		t.mu.Lock()
		if t.arrived != nil {
			t.arrived <- clock()
			t.arrived = nil
		}
		t.mu.Unlock()
	case icmpReply:
		if reply != nil {
			reply(binary.BigEndian.Uint16(f[icmpStart+6:]))
		}
	}
}

// ping returns a frame with an ICMP echo message (RFC 792).
func ping(from, to [6]byte, source, destination netip.Addr, kind byte, id, sequence uint16) []byte {
	f := make([]byte, pingSize)
	copy(f[0:], to[:])
	copy(f[6:], from[:])
	binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
	ip := f[ipStart:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_ICMP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], source.AsSlice())
	copy(ip[16:], destination.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:20]))
	icmp := f[icmpStart:]
	icmp[0] = kind
	binary.BigEndian.PutUint16(icmp[4:], id)
	binary.BigEndian.PutUint16(icmp[6:], sequence)
	binary.BigEndian.PutUint16(icmp[2:], checksum(icmp))
	return f
}

// checksum returns the Internet checksum of a text of even length (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// rarp returns the frame with which a virtual machine announces itself after a move: a
// reverse ARP request (RFC 903) as QEMU sends it.
func rarp(mac [6]byte) []byte {
	f := make([]byte, 60)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(f[6:], mac[:])
	copy(f[12:], []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3})
	copy(f[22:], mac[:])
	copy(f[32:], mac[:])
	return f
}

// pingID is the identifier of the last series of pings.
var pingID atomic.Uint32

// pings sends pings to a port at a fixed interval, whether or not they are answered.
type pings struct {
	from     *tap
	to       *placed
	id       uint16
	interval time.Duration
	slow     bool // after quickPings, the interval is slowInterval
	stop     func()
	done     chan struct{}

	mu       sync.Mutex // guards the fields below
	sent     int
	answered map[uint16]time.Duration // time of the answer by sequence number
	first    chan struct{}            // closed at the first answer
}

// Pings that wait for a first answer are sent each slowInterval once quickPings were
// not answered, so that the pings to many late ports do not take the CPU time of others.
const (
	quickPings   = 100
	slowInterval = 20 * time.Millisecond
)

// startPings starts a series of at most 65,535 pings.
func startPings(from *tap, to *placed, interval time.Duration) *pings {
	p := newPings(from, to, interval)
	p.start()
	return p
}

func newPings(from *tap, to *placed, interval time.Duration) *pings {
	return &pings{from: from, to: to, id: uint16(pingID.Add(1)), interval: interval, done: make(chan struct{}),
		answered: map[uint16]time.Duration{}, first: make(chan struct{})}
}

func (p *pings) start() {
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.from.mu.Lock()
	p.from.replies[p.id] = p.reply
	p.from.mu.Unlock()
	go p.run(ctx)
}

func (p *pings) run(ctx context.Context) {
	defer close(p.done)
	mac := [6]byte(p.to.Mac)
	for next := clock(); ctx.Err() == nil && p.sent < 65535; next += p.pause() {
		if wait := next - clock(); wait > 0 {
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
		}
		p.mu.Lock()
		p.sent++
		sequence := uint16(p.sent)
		p.mu.Unlock()
		_, _ = p.from.file.Write(ping(p.from.mac, mac, p.from.ip, addressOf(p.to), icmpRequest, p.id, sequence)) // a frame that the tap does not take counts as lost
	}
}

// pause returns the time until the next ping.
func (p *pings) pause() time.Duration {
	if p.slow && p.sent >= quickPings {
		return slowInterval
	}
	return p.interval
}

func (p *pings) reply(sequence uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.answered) == 0 {
		close(p.first)
	}
	if _, again := p.answered[sequence]; !again {
		p.answered[sequence] = clock()
	}
}

// lastAnswers is how long the last pings of a series may take.
const lastAnswers = time.Second

// end stops the series and returns how many pings it has sent, and how many of them
// were not answered.
func (p *pings) end(wait time.Duration) (sent, lost int) {
	p.stop()
	<-p.done
	time.Sleep(wait)
	p.from.mu.Lock()
	delete(p.from.replies, p.id)
	p.from.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent, p.sent - len(p.answered)
}

// gaps describes the runs of unanswered pings, for the log.
func (p *pings) gaps() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for n := 1; n <= p.sent; n++ {
		first := n
		for n <= p.sent && p.answered[uint16(n)] == 0 {
			n++
		}
		if n > first {
			list = append(list, fmt.Sprintf("%d after %s", n-first, time.Duration(first)*p.interval))
		}
	}
	return strings.Join(list, ", ")
}

// firstAnswer sends pings until one is answered, and returns the time of the answer.
func firstAnswer(ctx context.Context, from *tap, to *placed, interval time.Duration) (at time.Duration, ok bool) {
	p := newPings(from, to, interval)
	p.slow = true
	p.start()
	defer p.end(0)
	select {
	case <-p.first:
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, t := range p.answered {
			if at == 0 || t < at {
				at = t
			}
		}
		return at, true
	case <-ctx.Done():
		return 0, false
	}
}

// steadyInterval is the interval of the pings between the guests that stay.
const steadyInterval = 20 * time.Millisecond

// steady starts pings from one guest of each real host to a guest of the next host.
func (s *site) steady() (list []*pings) {
	if s == nil {
		return nil
	}
	for i, h := range s.hosts {
		k := i % len(s.nets)
		list = append(list, startPings(h.steady[k], s.hosts[(i+1)%len(s.hosts)].steady[k].port, steadyInterval))
	}
	return list
}

func (t *tap) setSilent(silent bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.silent = silent
}

// awaken lets a moved guest answer here and no longer at its old tap. The returned
// channel receives the time of the first ping that arrives here.
func (t *tap) awaken(old *tap) <-chan time.Duration {
	old.setSilent(true)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.silent, t.arrived = false, make(chan time.Duration, 1)
	return t.arrived
}
