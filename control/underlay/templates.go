// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"iter"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"weft/datapath"
	"weft/packet"
	"weft/tunnel"
)

// Tunnel templates. There is a template for each triple of vxlan port, local address
// and remote address to which a megaflow sends. If the kernel's routes or neighbours
// change, the workers get a new template and no megaflow changes.
const (
	// neighbourTimeout is how long frames wait for a neighbour before they are
	// dropped as DropNoNeighbour. It is shorter than datapath.HeldTimeoutNS, so that
	// frames are dropped with this reason.
	neighbourTimeout = 1500 * time.Millisecond
	// reprobe is the time between two probes of a neighbour that is being resolved,
	// has failed or is stale, while frames need the neighbour.
	reprobe = time.Second
	// templateIdle is how long a template that no megaflow uses is kept.
	templateIdle = 60 * time.Second
	// refreshChunk is the number of templates refreshed before Templates.mu is
	// released. A miss that waits for Templates.mu holds the pipeline's lock.
	refreshChunk = 64
	// MaxTemplates is the limit of tunnel templates. Beyond it a new tunnel gets no
	// template, and its frames are dropped.
	MaxTemplates = 16384
	// ethernetBytes is the size of the Ethernet header, which an MTU does not
	// include.
	ethernetBytes = 14
)

// Tunnel is the key of a template. The rest of a template depends on the kernel's
// state.
type Tunnel struct {
	Port          uint32 // vxlan port
	Local, Remote netip.Addr
}

// HeldFrame identifies a frame that a worker holds until control sends a verdict.
type HeldFrame struct {
	Worker int
	Slot   uint32
}

// Record is the tunnel of a template index. It is in memory that outlives the control
// process. Megaflows in the workers' caches refer to the index, so the next control
// process must use the index for the same tunnel.
type Record struct {
	Port          uint32   // vxlan port; 0: free
	UDPPort       uint32   // outer destination port
	Local, Remote [16]byte // addresses of the tunnel: IPv6, or IPv4 mapped into IPv6; Local all zero: the kernel chooses
}

type entry struct {
	Tunnel
	index    uint32
	udpPort  uint16
	template tunnel.Template // template that the workers have
	hop      hop
	waiting  []HeldFrame
	// askedAt is the time of the first unanswered probe of the neighbour; it is zero
	// if the neighbour is known. failed means that the neighbour did not answer
	// within neighbourTimeout.
	askedAt  time.Time
	probedAt time.Time
	usedAt   time.Time
	failed   bool

	// Fields for a route with several next hops (see nexthops.go). The entry of the
	// route has one member entry in members for each next hop in nextHops. In a
	// member entry, nextHop and parent are set. routeEvents is 0 until nextHops are
	// read, and then the value of Kernel.routeEvents at that time plus 1.
	routeEvents uint32
	nextHops    []nextHop
	members     []*entry
	nextHop     nextHop
	parent      *entry
}

// maxWaiting is the limit of frames that wait for one neighbour, like the kernel's
// unres_qlen. Further frames are dropped as DropNoNeighbour.
const maxWaiting = 256

// commandRings sends commands to an engine's workers. It waits for room in a full
// ring, and discards commands to a dead engine.
type commandRings interface {
	Push(worker int, msg []byte) bool
	Broadcast(msg []byte)
}

// Templates is the table of tunnel templates. Templates.mu is taken after the
// pipeline's lock and before the lock of the command rings.
type Templates struct {
	kernel *Kernel
	log    *slog.Logger

	mu      sync.Mutex
	rings   commandRings
	uplinks map[string]uint32 // device name -> datapath port
	encaps  map[uint32]Encap  // encap options by vxlan port
	byKey   map[Tunnel]*entry
	byIndex []*entry // nil: free
	records []Record // in the counter region
}

func NewTemplates(u *Kernel, log *slog.Logger) *Templates {
	return &Templates{kernel: u, log: log, uplinks: map[string]uint32{}, byKey: map[Tunnel]*entry{}}
}

// Restore takes over the template indexes that an earlier control process allocated.
func (t *Templates) Restore(w commandRings, records []Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rings, t.records = w, records
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

// Template returns the index of the template for key. It makes the template if there
// is none.
func (t *Templates) Template(key Tunnel, udpPort uint16) (uint32, packet.DropReason) {
	if !key.Remote.IsValid() || key.Remote.IsUnspecified() ||
		(key.Local.IsValid() && key.Local.Is4() != key.Remote.Is4()) {
		return 0, packet.DropNoRoute
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if key.Remote.IsMulticast() && t.encaps[key.Port].Dev == "" { // the group has no device: a flow has set the group's address, or the port is being removed
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

// releaseWaiting sends the workers a verdict for each frame that waits for the
// template of the entry e, unless the neighbour of the entry is still being resolved.
func (t *Templates) releaseWaiting(e *entry) {
	if e.template.State == tunnel.TemplatePending {
		return
	}
	for _, held := range e.waiting {
		t.rings.Push(held.Worker, e.verdict(held.Slot))
	}
	e.waiting = e.waiting[:0]
}

// verdict returns the command that retries or drops a held frame, according to the
// state of the template for which the frame waits.
func (e *entry) verdict(held uint32) []byte {
	switch e.template.State {
	case tunnel.TemplateReady, tunnel.TemplateSpread:
		return datapath.AppendCommand(nil, datapath.CmdRetry, held, nil)
	case tunnel.TemplateNoRoute, tunnel.TemplateFree:
		return datapath.AppendDropHeld(nil, held, packet.DropNoRoute)
	}
	return datapath.AppendDropHeld(nil, held, packet.DropNoNeighbour)
}

// Wait records that a held frame waits until the template with this index is
// resolved.
func (t *Templates) Wait(index uint32, held HeldFrame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(index) >= len(t.byIndex) || t.byIndex[index] == nil {
		t.rings.Push(held.Worker, datapath.AppendDropHeld(nil, held.Slot, packet.DropNoRoute))
		return
	}
	e := t.byIndex[index]
	e.usedAt = time.Now()
	if e.template.State != tunnel.TemplatePending {
		t.rings.Push(held.Worker, e.verdict(held.Slot))
		return
	}
	if len(e.waiting) >= maxWaiting {
		t.rings.Push(held.Worker, datapath.AppendDropHeld(nil, held.Slot, packet.DropNoNeighbour))
		return
	}
	e.waiting = append(e.waiting, held)
	t.pursueNeighbour(e, time.Now())
}

// MarkUsed records which templates megaflows use, by index, and frees templates that
// no megaflow has used for templateIdle. The caller holds the pipeline's lock for
// writing, so that no translation runs during the call.
func (t *Templates) MarkUsed(indexes iter.Seq[uint32]) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for i := range indexes {
		if int(i) < len(t.byIndex) && t.byIndex[i] != nil {
			t.byIndex[i].usedAt = now
		}
	}
	for _, e := range t.byIndex {
		if e != nil && e.parent == nil && now.Sub(e.usedAt) > templateIdle {
			t.free(e)
		}
	}
}

// free frees the template of the entry e and its index, and drops the frames that
// wait for the template. The caller holds t.mu.
func (t *Templates) free(e *entry) {
	e.template = tunnel.Template{}
	t.rings.Broadcast(datapath.AppendTemplate(nil, e.index, &e.template))
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

// DropPort frees all templates of vxlan port no. No megaflow may use them any more.
func (t *Templates) DropPort(no uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.byIndex {
		if e != nil && e.parent == nil && e.Port == no {
			t.free(e)
		}
	}
}

// SetPorts replaces two maps: the numbers of the uplink ports by device name, and the
// encap options of vxlan ports by port number.
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
	for _, e := range t.byIndex {
		if e == nil {
			continue
		}
		e.waiting = nil // the engine that held the waiting frames is dead
		w.Broadcast(datapath.AppendTemplate(nil, e.index, &e.template))
	}
}

// Reset forgets all templates. The caller guarantees that no worker has a template
// and no frame waits for a neighbour.
func (t *Templates) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.byKey)
	t.byIndex, t.rings, t.records = nil, nil, nil
}
