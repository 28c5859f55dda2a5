// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
	"weft/openflow/ofproto"
)

// fakeSwitch is a Switch with real tables and nothing else.
type fakeSwitch struct {
	mu      sync.Mutex
	tables  *ofproto.Tables
	batches []int // numbers of flow_mods applied together
	frames  []sentFrame
	ports   []Port
	service *Service             // gets the events of ApplyEach, or is nil
	scanned func([]ofproto.Rule) // runs at the end of ScanRules, or is nil

	fragments ofproto.Fragments
}

func (f *fakeSwitch) ApplyEach(mods []openflow.FlowMod, author Author) []error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, len(mods))
	author.Begin()
	defer author.End()
	changes, errs := f.tables.ApplyEach(mods, nowNS())
	if f.service == nil {
		return errs
	}
	for _, r := range changes.Removed {
		f.service.TellFlow(ofp.FlowDeleted, r)
	}
	for _, r := range changes.Added {
		f.service.TellFlow(ofp.FlowAdded, r)
	}
	return errs
}

func (f *fakeSwitch) ApplyBundle(items []ofproto.BundleItem, _ Author) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var sent []sentFrame
	for i := range items {
		if out := items[i].Frame; out != nil {
			items[i].Execute = func() error {
				if len(out.Frame) < 14 {
					return refused(openflow.ErrBadRequestLen, "short frame")
				}
				sent = append(sent, sentFrame{string(out.Frame), f.tables.Len()})
				return nil
			}
		}
	}
	_, err := f.tables.ApplyBundle(items, nowNS())
	if err == nil {
		f.frames = append(f.frames, sent...)
	}
	var at *ofproto.ApplyError
	if errors.As(err, &at) {
		return at.Index, err
	}
	return 0, err
}

// sentFrame is a frame of a packet_out, with the number of flows when it was sent.
type sentFrame struct {
	frame string
	flows int
}

func (f *fakeSwitch) Send(r *openflow.PacketOut) error {
	sent := sentFrame{string(r.Frame), f.flows()}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.frames = append(f.frames, sent)
	return nil
}

// Resume refuses every frame.
func (f *fakeSwitch) Resume(*ofp.ResumeRequest) error {
	return refused(openflow.ErrResumeStale, "no frame is paused")
}

func (f *fakeSwitch) PullCounts() {}

func (f *fakeSwitch) ScanRules(filter *openflow.FlowMod, slot uint32, rules []ofproto.Rule) ([]ofproto.Rule, uint32, bool) {
	f.mu.Lock()
	next, more := f.tables.Scan(filter, slot, 16, func(r *ofproto.Rule) { rules = append(rules, *r) })
	scanned := f.scanned
	f.mu.Unlock()
	if scanned != nil {
		scanned(rules)
	}
	return rules, next, more
}

func (f *fakeSwitch) ApplyGroups(mods []openflow.GroupMod, _ Author) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.tables.ApplyGroups(mods, nowNS())
	return err
}

func (f *fakeSwitch) Groups(id uint32) (list []Group) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.tables.Groups(id) {
		list = append(list, Group{Group: g, Stats: f.tables.GroupStats(g)})
	}
	return list
}

func (f *fakeSwitch) ApplyMeters([]openflow.MeterMod, Author) error { return nil }
func (f *fakeSwitch) Meters(uint32) []Meter                         { return nil }
func (f *fakeSwitch) Tables() []ofp.TableState                      { return nil }
func (f *fakeSwitch) Queues() []ofp.Queue {
	return []ofp.Queue{{Port: 1, ID: 0, TxPackets: 5, TxBytes: 600, TxErrors: 2, DurationNS: 3e9}, {Port: 1, ID: 7}, {Port: 2, ID: 1}}
}
func (f *fakeSwitch) SetEviction(uint8, bool) error { return nil }
func (f *fakeSwitch) TLVs() *openflow.TLVMap        { return f.tables.TLVs() }
func (f *fakeSwitch) ChangeTLVs(mod *openflow.TLVMod) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tables.ChangeTLVs(mod)
}
func (f *fakeSwitch) Ports() []Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ports)
}
func (f *fakeSwitch) SetPortConfig(number, config uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.ports {
		if f.ports[i].No == number {
			f.ports[i].Config = config
		}
	}
	return nil
}
func (f *fakeSwitch) FlushConnections(*ofp.CTMatch) error { return nil }

func (f *fakeSwitch) Fragments() ofproto.Fragments { return f.fragments }

func (f *fakeSwitch) SetFragments(mode ofproto.Fragments) { f.fragments = mode }
func (f *fakeSwitch) flows() (n int)                      { f.mu.Lock(); defer f.mu.Unlock(); return f.tables.Len() }
func (f *fakeSwitch) rule(slot uint32) (r ofproto.Rule, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.tables.Rule(slot); p != nil {
		return *p, true
	}
	return r, false
}

// rig is an OpenFlow service with a fake switch, on a unix socket.
type rig struct {
	t       *testing.T
	service *Service
	sw      *fakeSwitch
	path    string
	role    atomic.Int32 // Role of new peers
}

func newRig(t *testing.T, change ...func(*Setup)) *rig {
	t.Helper()
	r := &rig{t: t, sw: &fakeSwitch{tables: ofproto.NewTables(ofproto.Limits{Rules: 1 << 16})}, path: filepath.Join(t.TempDir(), "s")}
	r.role.Store(int32(Write))
	l, err := net.Listen("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	s := Setup{Switch: r.sw, DatapathID: 7, Listeners: []net.Listener{l}, Log: slog.New(slog.DiscardHandler),
		Role: func(net.Conn) (Role, string) { return Role(r.role.Load()), "tester" }}
	for _, c := range change {
		c(&s)
	}
	r.service = New(s)
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { r.service.Run(ctx) })
	t.Cleanup(func() { stop(); done.Wait() })
	return r
}

// peer is an OpenFlow client of the service.
type peer struct {
	t *testing.T
	net.Conn
	v ofp.Version
}

// patience is the time for which a test waits for a message.
const patience = time.Minute

func (r *rig) dial() *peer {
	r.t.Helper()
	c, err := net.Dial("unix", r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	return &peer{t: r.t, Conn: c}
}

// connect returns a peer that has exchanged hellos and speaks version v.
func (r *rig) connect(v ofp.Version) *peer {
	r.t.Helper()
	p := r.dial()
	p.v = v
	if m := p.read(); m[1] != ofp.TypeHello {
		r.t.Fatalf("the first message is % x", m)
	}
	p.write(ofptest.Message(v, ofp.TypeHello, 1))
	return p
}

// listener returns a listener on a TCP port of the loopback device.
func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func (p *peer) write(m []byte) {
	p.t.Helper()
	if _, err := p.Write(m); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) read() []byte {
	p.t.Helper()
	_ = p.SetReadDeadline(time.Now().Add(patience))
	m, err := ofp.ReadMessage(p, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

// flow returns a flow_mod from the text of a flow.
func flow(t *testing.T, v ofp.Version, xid uint32, command openflow.Command, text string) []byte {
	t.Helper()
	mod, err := openflow.ParseFlowMod(text, command, nil)
	if err != nil {
		t.Fatal(err)
	}
	return ofptest.FlowMod(v, xid, &mod)
}

// barrier sends a barrier, and returns the messages that arrive before the answer.
func (p *peer) barrier() (messages [][]byte) {
	p.t.Helper()
	request, reply := uint8(20), uint8(21)
	if p.v == openflow.Version10 {
		request, reply = 18, 19
	}
	p.write(ofptest.Message(p.v, request, 0xba))
	for {
		m := p.read()
		if m[1] == reply {
			return messages
		}
		messages = append(messages, m)
	}
}

// errorOf returns the type, the code and the xid of an error message.
func errorOf(t *testing.T, m []byte) (kind, code uint16, xid uint32) {
	t.Helper()
	if m[1] != ofp.TypeError {
		t.Fatalf("message % x is no error", m)
	}
	return binary.BigEndian.Uint16(m[8:]), binary.BigEndian.Uint16(m[10:]), binary.BigEndian.Uint32(m[4:])
}
