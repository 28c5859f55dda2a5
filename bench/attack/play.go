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

// attack is one row: who attacks, how, and what bystanders may lose by it.
type attack struct {
	name string
	from string // front end, guest, peer or client of the API
	does string
	// mayLose is what bystanders may lose; "": nothing.
	mayLose string
	// hears says that bystanders' frames may come to the attacker, within mayLose.
	hears bool
	// memory is how much more than leastMemory a process may grow by, in bytes: what the
	// attack fills has a limit of its own.
	memory int64
	// message says that the attack is shaped like a message or an attach: it is
	// repeated a thousand times at least, where the time allows.
	message bool
	// unmended says that the switch does not hold against it yet: it is no test.
	unmended bool
	// uplink is the type of port of the uplink that the attack needs; "": af_xdp.
	uplink string
	// alone says that the attack is not part of a storm, because a control process that is killed forgets
	// what it needs: a bystander's forged address floods, to the other bystander too.
	alone bool
	// kills says that the engine may be replaced because of it.
	kills bool
	// setup prepares a play, outside of the measurement.
	setup func(p *play) error
	// once is one go. It is repeated until the time is over.
	once func(p *play) error
	// check looks afterwards for what the bystanders' stream does not show.
	check func(p *play) error
}

// play is an attack that is being played.
type play struct {
	*attack
	site    *site
	name    string // of its ports: a prefix
	rng     *rand.Rand
	until   time.Time
	wrong   atomic.Int64 // frames of the bystanders' that came to the attacker
	repeats int
	notes   string // of the check, for the row

	mu   sync.Mutex
	undo []func() // by teardown, the latest first
	vars map[string]any
}

func newPlay(s *site, a *attack, seed uint64) *play {
	n := s.named.Add(1)
	return &play{attack: a, site: s, name: fmt.Sprint("x", n), rng: rand.New(rand.NewPCG(seed, uint64(n))), vars: map[string]any{}}
}

// later has f called at the play's end, the latest first.
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

// over tells whether the time is over.
func (p *play) over() bool { return !time.Now().Before(p.until) }

// port adds a vhost-user port to attack through, and the flow that is given without its
// in_port (""; none). Both go with the play.
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
	if _, err := p.site.client.AddPort(name, options); err != nil {
		return err
	}
	p.later(func() { p.site.delPort(name) })
	return nil
}

// delPort deletes a port, also while the switch is just being killed.
func (s *site) delPort(name string) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		err := s.client.DelPort(name)
		var refused *api.Refused
		if err == nil || errors.As(err, &refused) && refused.Input {
			return
		}
	}
}

// flow adds a flow of the play's own.
func (p *play) flow(text string) error {
	cookie := p.cookie()
	if _, _, code := p.site.daemon.TryWeft("add-flow", "cookie="+cookie+","+text); code != 0 {
		_, why, _ := p.site.daemon.TryWeft("add-flow", "cookie="+cookie+","+text)
		return fmt.Errorf("add-flow %s: %s", text, why)
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

// guest attaches a guest to a socket of the play's. It is detached with the play, or by
// its close.
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

// guest is an attacker's: what comes to it is looked at for bystanders' frames.
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

// drain takes all that has come and returns the number of frames.
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

// send transmits a frame on the first queue, once there is room; false if there is
// none for a while: the device is stopped or slow.
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

// flush publishes what was sent.
func (g *guest) flush() {
	g.Tx[0].Publish()
	g.drain()
}

// echo sends a frame and waits until something comes back: the device runs.
func (g *guest) echo() error {
	g.send(make([]byte, 64))
	g.Tx[0].Publish()
	for end := time.Now().Add(patience); g.drain() == 0; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			return errors.New("the attacker's own frame does not come back")
		}
	}
	return nil
}

// gone waits until the switch has closed the connection; false if it does not for the
// time given.
func (g *guest) gone(limit time.Duration) bool {
	_ = g.front.Conn.SetReadDeadline(time.Now().Add(limit))
	var b [64]byte
	for {
		if _, err := g.front.Conn.Read(b[:]); err != nil {
			var late net.Error
			return !errors.As(err, &late) || !late.Timeout()
		}
	}
}

// table is the payload of SET_MEM_TABLE.
func table(regions ...vhost.RegionSpec) []byte {
	b := vhosttest.Pair(len(regions), 0)
	for _, r := range regions {
		b = append(b, vhosttest.Region(r)...)
	}
	return b
}

// ether is a frame of n bytes between two addresses.
func ether(dst, src [6]byte, kind uint16, n int) []byte {
	f := make([]byte, n)
	copy(f, dst[:])
	copy(f[6:], src[:])
	binary.BigEndian.PutUint16(f[12:], kind)
	return f
}
