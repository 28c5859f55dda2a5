// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weft/api"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// attack describes one attack. During it, two guests, the bystanders, exchange frames through the
// switch, and must not be harmed.
type attack struct {
	name     string
	attacker string // kind of attacker, such as "guest"; the report prints it
	summary  string
	// mayLose describes, for the report, which frames of the bystanders the attack may make the switch
	// lose; "": none.
	mayLose string
	// hears means that the attacker may receive the bystanders' frames that mayLose describes.
	hears bool
	// memory is the number of bytes by which a process may stay larger after the attack, in addition to
	// what every attack is allowed (row.leaks).
	memory int64
	// peak is the number of bytes by which the memory of the watched process (play.watched) may grow
	// during the attack; 0: there is no limit.
	peak int64
	// message marks an attack that consists of a single message or a single attach. It is repeated at
	// least leastRepeats times.
	message bool
	// uplink is the type of the switch's uplink port that the attack needs; "": af_xdp.
	uplink string
	// exclusive keeps the attack out of storms (storm.go), in which several attacks run at the same
	// time. Some attacks forge addresses, which the control process forgets when a storm kills it.
	// Others make the switch replace engines all the time. Others fill the bystanders' rings, so that
	// nobody could tell how many of the dropped frames were the bystanders'.
	exclusive bool
	// long keeps the attack out of "make test", because its setup takes long.
	long bool
	// kills means that the attack may make the switch replace the engine process.
	kills bool
	// greedy lets the bystanders, the two guests that do not attack, ask for as much of the worker's
	// time as they can get.
	greedy bool
	// setup prepares the attack. It runs before the measurement begins.
	setup func(p *play) error
	// play plays the attack once. It returns early when the time of the attack is over.
	play func(p *play) error
	// check runs after the attack. It returns an error for harm that the traffic of the other guests
	// does not show. nil: there is nothing more to check.
	check func(p *play) error
}

// play is an attack in progress, with its ports, its guests and its cleanup functions.
type play struct {
	*attack
	site    *site
	name    string // prefix of the names of the attack's ports
	rng     *rand.Rand
	until   time.Time
	wrong   atomic.Int64 // number of bystanders' frames that the attacker received
	began   int64        // value of "wrong" when the measurement began
	repeats int
	// slowest is the longest time for which a client that does not attack waited for an answer. It
	// counts as an answer of the API (row.APIMS).
	slowest time.Duration
	watched int    // process ID of the process that attack.peak limits; 0: the control process
	notes   string // remarks of the attack's check for the report

	mu   sync.Mutex
	undo []func() // cleanup functions; teardown calls the last one first
	vars map[string]any
}

func newPlay(s *site, a *attack, seed uint64) *play {
	n := s.named.Add(1)
	return &play{attack: a, site: s, name: fmt.Sprint("x", n), rng: rand.New(rand.NewPCG(seed, uint64(n))), vars: map[string]any{}}
}

// later registers a cleanup function. teardown calls the functions in reverse order.
func (p *play) later(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.undo = append(p.undo, f)
}

func (p *play) teardown() {
	p.mu.Lock()
	undo := p.undo
	p.undo = nil
	p.mu.Unlock()
	for i := len(undo) - 1; i >= 0; i-- {
		undo[i]()
	}
}

func (p *play) expired() bool { return !time.Now().Before(p.until) }

// port adds a vhost-user port with an optional flow, and returns its socket path.
// teardown deletes both.
func (p *play) port(suffix, flow string, options ...string) (socket string, err error) {
	name := p.name + suffix
	socket = p.site.socket(name)
	if err := p.addPort(name, append([]string{"type=vhost-user", "path=" + socket}, options...)...); err != nil {
		return "", err
	}
	if flow != "" {
		err = p.flow("priority=50,in_port=" + name + "," + flow)
	}
	return socket, err
}

func (p *play) addPort(name string, options ...string) error {
	_, err := p.site.client.AddPort(name, options)
	if !refusedInput(err) { // without an answer, a killed control process may have added the port
		p.later(func() { p.site.delPort(name, err) })
	}
	return err
}

// refusedInput reports whether the switch has refused a request because the request itself is wrong.
func refusedInput(err error) bool {
	var refused *api.Refused
	return errors.As(err, &refused) && refused.Input
}

// delPort deletes a port. It repeats the request until the switch answers, because a storm may be
// killing the control process. "added" is the error with which the port was added. If the switch gave
// up on that request, the port may still appear. delPort then tries to delete it for abandonedLimit.
func (s *site) delPort(name string, added error) {
	var late *api.Refused
	begin, abandoned := time.Now(), errors.As(added, &late) && late.Unavailable
	for ; time.Since(begin) < patience; time.Sleep(50 * time.Millisecond) {
		err := s.client.DelPort(name)
		if err == nil || refusedInput(err) && (!abandoned || time.Since(begin) > abandonedLimit) {
			return
		}
	}
}

func (p *play) flow(text string) error {
	cookie := p.cookie()
	if _, _, code := p.site.daemon.TryWeft("add-flow", "cookie="+cookie+","+text); code != 0 {
		_, reason, _ := p.site.daemon.TryWeft("add-flow", "cookie="+cookie+","+text)
		return fmt.Errorf("add-flow %s: %s", text, reason)
	}
	p.mu.Lock()
	first := p.vars["flows"] == nil
	p.vars["flows"] = true
	p.mu.Unlock()
	if first {
		p.later(func() { p.site.daemon.TryWeft("del-flows", "cookie="+cookie+"/-1") })
	}
	return nil
}

func (p *play) cookie() string { return fmt.Sprintf("%#x", 0xa77ac0000+p.site.number(p.name)) }

func (s *site) number(name string) (n int) {
	_, _ = fmt.Sscanf(name, "x%d", &n)
	return n
}

func (p *play) guest(socket string, o vhosttest.Options) (*guest, error) {
	if o.Num == 0 {
		o.Num = 64
	}
	if o.Features == 0 {
		o.Features = plainFeatures
	}
	g, err := vhosttest.New(o)
	if err != nil {
		return nil, err
	}
	f, err := vhosttest.Dial(socket)
	if err == nil {
		err = f.Attach(g)
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		g.Close()
		return nil, fmt.Errorf("attach: %w", err)
	}
	return &guest{Guest: g, front: f, play: p}, nil
}

// guest is a guest of the attacker. If it receives frames of the bystanders, it counts them in
// play.wrong.
type guest struct {
	*vhosttest.Guest
	front  *vhosttest.FrontEnd
	play   *play
	frame  []byte
	closed bool
}

func (g *guest) close() {
	if !g.closed {
		g.closed = true
		g.front.Close()
		g.Close()
	}
}

func (g *guest) drain() (n int) {
	for _, q := range g.Rx {
		for {
			frame, _, ok := q.Recv(g.frame[:0])
			if !ok {
				break
			}
			if g.frame = frame; foreign(frame) {
				g.play.wrong.Add(1)
			}
			n++
		}
		q.Refill()
	}
	return n
}

func (p *play) drain() {
	if g, ok := p.vars["guest"].(*guest); ok && !g.closed {
		g.drain()
	}
}

// heldFrames returns how many frames of the bystanders wait in the switch for the control process to
// handle their cache miss. They are not lost.
func (p *play) heldFrames() (n int) {
	n = p.site.heldFrames()
	p.drain() // a held frame may have arrived while the API answered
	return n
}

// heldFrames returns how many frames of the two guests that do not attack wait in the switch. If the
// API does not answer, the number is unknown, and heldFrames returns 1.
func (s *site) heldFrames() (n int) {
	rows, err := s.client.Limits("")
	if err != nil {
		return 1
	}
	for _, r := range rows {
		if r.Name == "held_frames" && (r.Holder == "a" || r.Holder == "b") {
			n += int(r.Used)
		}
	}
	return n
}

// send puts a frame into the guest's first transmit queue. It returns false if the ring stays full for
// 50 ms.
func (g *guest) send(frame []byte) bool { return g.sendHeaded([12]byte{}, frame) }

func (g *guest) sendHeaded(vnet [12]byte, frame []byte) bool {
	for end := time.Now().Add(50 * time.Millisecond); !g.Tx[0].SendHeaded(vnet, frame); time.Sleep(50 * time.Microsecond) {
		g.Tx[0].Publish()
		g.drain()
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (g *guest) flush() {
	g.Tx[0].Publish()
	g.drain()
}

// echoAgain is the time after which the method echo sends another frame. The first one may be lost: if
// the control process does not handle a cache miss within 2 s, the switch drops the frame
// (held-expired). This happens on a busy machine.
const echoAgain = 3 * time.Second

func (g *guest) echo() error {
	var sent time.Time
	for end := time.Now().Add(patience); g.drain() == 0; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return errors.New("the attacker's own frame does not come back")
		}
		if time.Since(sent) > echoAgain {
			if !sent.IsZero() && g.disconnected(time.Millisecond) {
				return errors.New("the switch has closed the attacker's session")
			}
			sent = time.Now()
			g.send(make([]byte, 64))
			g.Tx[0].Publish()
		}
	}
	return nil
}

func (g *guest) disconnected(limit time.Duration) bool {
	_ = g.front.Conn.SetReadDeadline(time.Now().Add(limit))
	defer func() { _ = g.front.Conn.SetReadDeadline(time.Time{}) }()
	var b [64]byte
	for {
		if _, err := g.front.Conn.Read(b[:]); err != nil {
			var late net.Error
			return !errors.As(err, &late) || !late.Timeout()
		}
	}
}

func table(regions ...vhost.RegionSpec) []byte {
	b := vhosttest.Pair(len(regions), 0)
	for _, r := range regions {
		b = append(b, vhosttest.Region(r)...)
	}
	return b
}

// ether returns an Ethernet frame of n bytes. kind is its EtherType.
func ether(dst, src [6]byte, kind uint16, n int) []byte {
	f := make([]byte, n)
	copy(f, dst[:])
	copy(f[6:], src[:])
	binary.BigEndian.PutUint16(f[12:], kind)
	return f
}
