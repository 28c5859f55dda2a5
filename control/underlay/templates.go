// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft/datapath"
	"weft/packet"
	"weft/tunnel"
)

// Limits and times of the tunnel templates. There is a template for each combination of tunnel
// port, local address and remote address. A change of routes or neighbours changes templates,
// but never megaflows.
const (
	// neighbourTimeout is how long frames wait for the MAC address of a neighbour. They
	// are then dropped as DropNoNeighbour. It is shorter than the time for which a worker
	// holds a frame (datapath/held.go, heldTimeoutNS).
	neighbourTimeout = 1500 * time.Millisecond
	// reprobe is the interval at which a neighbour that frames wait for is probed
	// again.
	reprobe = time.Second
	// templateIdle is the time after which an unused template is freed.
	templateIdle = 60 * time.Second
	// refreshChunk is the number of templates that are refreshed before Templates.mu is released. The
	// translation of a frame without a megaflow may wait for this lock.
	refreshChunk = 64
	// MaxTemplates limits the tunnel templates. Frames of further tunnels are
	// dropped.
	MaxTemplates = 16384
	// ethernetBytes is the size of the Ethernet header, which MTUs exclude.
	ethernetBytes = 14
)

// Tunnel identifies a template by its tunnel port and the addresses of the outer header.
type Tunnel struct {
	Port          uint32 // tunnel port
	Local, Remote netip.Addr
}

// HeldFrame identifies a frame that a worker holds until the control process decides about it.
type HeldFrame struct {
	Worker int
	Ref    uint32 // see datapath.UpMiss
}

// Record describes the tunnel to which a template index belongs. It is in memory that outlives the control
// process, because megaflows refer to the index.
type Record struct {
	Port          uint32   // tunnel port; 0: free
	UDPPort       uint32   // outer destination port
	Local, Remote [16]byte // IPv6 addresses, or IPv4 mapped into IPv6; Local zero: the kernel chooses the address
}

type entry struct {
	Tunnel
	index    uint32
	udpPort  uint16
	template tunnel.Template // the template as the workers have it
	hop      hop
	waiting  []HeldFrame
	// askedAt is the time of the first probe without an answer, or zero. failed is true if no
	// answer came within neighbourTimeout.
	askedAt  time.Time
	probedAt time.Time
	usedAt   time.Time
	failed   bool

	// Fields for a route with several next hops (nexthops.go). The entry of the route has members, one for
	// each next hop. Each member has nextHop and parent. routeEvents is 1 plus the value that
	// Kernel.routeEvents had when nextHops was last read; 0: it was not read yet.
	routeEvents uint32
	nextHops    []nextHop
	members     []*entry
	nextHop     nextHop
	parent      *entry
}

// maxWaiting limits the frames that wait for one neighbour, like the kernel's
// unres_qlen. Further frames are dropped as DropNoNeighbour.
const maxWaiting = 256

// commandRings sends commands to workers, as workers.Workers does. A full ring makes it wait;
// commands to a dead engine are discarded.
type commandRings interface {
	Push(worker int, msg []byte) bool
	Broadcast(msg []byte)
	Shared() []*datapath.Shared
}

// Templates has the tunnel templates. Templates.mu is taken after the pipeline's lock
// and before the lock of the command rings.
type Templates struct {
	kernel *Kernel
	log    *slog.Logger

	// mu guards all fields below. The callers of assess, throughUplink, stateOf, free, sessionIndex,
	// syncSessions, adoptRows, readSessions and superviseState hold it.
	mu      sync.Mutex
	rings   commandRings
	uplinks map[string]uint32 // device name -> datapath port
	encaps  map[uint32]Encap  // encap options by tunnel port
	byKey   map[Tunnel]*entry
	byIndex []*entry                                 // nil: free
	records []Record                                 // in the counter region
	changed func(index uint32, next tunnel.Template) // see Notify
	watches map[uint32][]*watch                      // declared remotes by tunnel port
	// sessions are the declared BFD sessions. rows is the part of the engine's shared memory with the
	// state of the sessions or, after Reset, a copy of it.
	sessions   map[Tunnel]*session
	rows       []datapath.BFDSession
	supervised chan struct{} // wakes up FollowSessions
}

func NewTemplates(u *Kernel, log *slog.Logger) *Templates {
	return &Templates{kernel: u, log: log, uplinks: map[string]uint32{}, byKey: map[Tunnel]*entry{}, sessions: map[Tunnel]*session{}, supervised: make(chan struct{}, 1)}
}

// Notify sets the function that t calls after each change of a template. This function must not call t.
func (t *Templates) Notify(changed func(index uint32, next tunnel.Template)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = changed
}

// send sends the template of e to all workers, and calls the function of Notify.
func (t *Templates) send(e *entry) {
	t.rings.Broadcast(datapath.AppendTemplate(nil, e.index, &e.template))
	if t.changed != nil {
		t.changed(e.index, e.template)
	}
}

// Restore takes over the template indexes of an earlier control process from records. The
// engine behind w still has the templates.
func (t *Templates) Restore(w commandRings, records []Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rings, t.records = w, records
	t.adoptRows(w, false)
	now := time.Now()
	for i, r := range records {
		if r.Port == 0 {
			continue
		}
		for len(t.byIndex) <= i {
			t.byIndex = append(t.byIndex, nil)
		}
		key := Tunnel{Port: r.Port, Remote: netip.AddrFrom16(r.Remote).Unmap()}
		if r.Local != [16]byte{} {
			key.Local = netip.AddrFrom16(r.Local).Unmap()
		}
		e := &entry{Tunnel: key, index: uint32(i), udpPort: uint16(r.UDPPort), usedAt: now}
		t.byIndex[i], t.byKey[key] = e, e
	}
}

// Template returns the index of the template for the tunnel key. It makes the template if there is none.
// udpPort is the outer destination port. If there is no template, the second result is the reason to drop
// frames.
func (t *Templates) Template(key Tunnel, udpPort uint16) (uint32, packet.DropReason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.template(key, udpPort)
}

// template does the work of Template. The caller holds t.mu.
func (t *Templates) template(key Tunnel, udpPort uint16) (uint32, packet.DropReason) {
	if !key.Remote.IsValid() || key.Remote.IsUnspecified() ||
		(key.Local.IsValid() && key.Local.Is4() != key.Remote.Is4()) {
		return 0, packet.DropNoRoute
	}
	// The port's options name no device for the group: a flow has set the group as the tunnel's
	// destination, or the port is being removed.
	if key.Remote.IsMulticast() && t.encaps[key.Port].Dev == "" {
		return 0, packet.DropNoRoute
	}
	now := time.Now()
	if e := t.byKey[key]; e != nil && e.udpPort == udpPort {
		e.usedAt = now
		return e.index, packet.DropNone
	}
	e := &entry{Tunnel: key, udpPort: udpPort, usedAt: now}
	if !t.allocate(e) {
		return 0, packet.DropNoRoute
	}
	t.byKey[key] = e
	t.records[e.index] = e.record()
	t.refreshEntry(e, now)
	return e.index, packet.DropNone
}

func (t *Templates) allocate(e *entry) bool {
	for i, old := range t.byIndex {
		if old == nil {
			e.index, t.byIndex[i] = uint32(i), e
			return true
		}
	}
	if len(t.byIndex) >= MaxTemplates {
		return false
	}
	e.index = uint32(len(t.byIndex))
	t.byIndex = append(t.byIndex, e)
	return true
}

func (e *entry) record() Record {
	r := Record{Port: e.Port, UDPPort: uint32(e.udpPort), Remote: e.Remote.As16()}
	if e.Local.IsValid() {
		r.Local = e.Local.As16()
	}
	return r
}

// releaseWaiting sends the workers a decision (send or drop) for each frame that waits for e.
// It is called when the neighbour of e is resolved or has failed.
func (t *Templates) releaseWaiting(e *entry) {
	if e.template.State == tunnel.TemplatePending {
		return
	}
	for _, held := range e.waiting {
		t.rings.Push(held.Worker, e.verdict(held.Ref))
	}
	e.waiting = e.waiting[:0]
}

func (e *entry) verdict(held uint32) []byte {
	switch e.template.State {
	case tunnel.TemplateReady, tunnel.TemplateSpread:
		return datapath.AppendCommand(nil, datapath.CmdRetry, held, nil)
	case tunnel.TemplateNoRoute, tunnel.TemplateFree:
		return datapath.AppendDropHeld(nil, held, packet.DropNoRoute)
	}
	return datapath.AppendDropHeld(nil, held, packet.DropNoNeighbour)
}

// Wait lets a frame that a worker holds wait until the template of this index is ready.
func (t *Templates) Wait(index uint32, held HeldFrame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(index) >= len(t.byIndex) || t.byIndex[index] == nil {
		t.rings.Push(held.Worker, datapath.AppendDropHeld(nil, held.Ref, packet.DropNoRoute))
		return
	}
	e := t.byIndex[index]
	e.usedAt = time.Now()
	if e.template.State != tunnel.TemplatePending {
		t.rings.Push(held.Worker, e.verdict(held.Ref))
		return
	}
	if len(e.waiting) >= maxWaiting {
		t.rings.Push(held.Worker, datapath.AppendDropHeld(nil, held.Ref, packet.DropNoNeighbour))
		return
	}
	e.waiting = append(e.waiting, held)
	t.pursueNeighbour(e, time.Now())
}

// MarkUsed records that megaflows use the templates of these indexes. It frees templates that
// were unused for templateIdle. The caller holds the pipeline's lock for writing.
func (t *Templates) MarkUsed(indexes iter.Seq[uint32]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for i := range indexes {
		if int(i) < len(t.byIndex) && t.byIndex[i] != nil {
			t.byIndex[i].usedAt = now
		}
	}
	for key := range t.sessions {
		if e := t.byKey[key]; e != nil {
			e.usedAt = now
		}
	}
	for _, e := range t.byIndex {
		if e != nil && e.parent == nil && now.Sub(e.usedAt) > templateIdle {
			t.free(e)
		}
	}
}

// free frees the template of e, and drops its waiting frames.
func (t *Templates) free(e *entry) {
	e.template = tunnel.Template{}
	t.send(e)
	t.releaseWaiting(e)
	for _, m := range e.members {
		t.free(m)
	}
	if t.byIndex[e.index] = nil; e.parent != nil {
		return
	}
	delete(t.byKey, e.Tunnel)
	t.records[e.index] = Record{}
}

// DropPort frees all templates of a tunnel port. The caller makes sure that no megaflow
// uses them any more.
func (t *Templates) DropPort(number uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.byIndex {
		if e != nil && e.parent == nil && e.Port == number {
			t.free(e)
		}
	}
}

// SetPorts sets the uplinks' port numbers in the data path by device name. outers has the encap
// options by tunnel port number.
func (t *Templates) SetPorts(uplinks map[string]uint32, outers map[uint32]Encap) {
	t.mu.Lock()
	t.uplinks, t.encaps = uplinks, outers
	t.mu.Unlock()
	t.refresh(true)
}

// Replay sends every template to the workers of a new engine.
func (t *Templates) Replay(w commandRings, records []Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rings, t.records = w, records
	t.adoptRows(w, true)
	for _, e := range t.byIndex {
		if e == nil {
			continue
		}
		e.waiting = nil // the frames that waited were lost with their engine
		w.Broadcast(datapath.AppendTemplate(nil, e.index, &e.template))
	}
}

// Reset forgets all templates before the engine's memory is freed. The caller makes sure that
// no worker has a template and no frame waits.
func (t *Templates) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.byKey)
	if t.changed != nil {
		for i := range t.byIndex {
			t.changed(uint32(i), tunnel.Template{})
		}
	}
	t.byIndex, t.rings, t.records = nil, nil, nil
	t.rows = slices.Clone(t.rows) // the caller frees the memory
}
