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

// Tunnel templates: one for each vxlan port, local and remote address that a
// megaflow sends to. A change of the kernel's routes or neighbours changes the
// template in the workers, never a megaflow.
const (
	// neighbourTimeout is how long frames wait for a neighbour before they are
	// dropped as DropNoNeighbour. Shorter than datapath.HeldTimeoutNS, so that
	// the reason is that one.
	neighbourTimeout = 1500 * time.Millisecond
	// reprobe is the time between two probes of a neighbour that is awaited,
	// has failed, or is stale, as long as it is needed.
	reprobe = time.Second
	// templateIdle is how long a template that no megaflow uses is kept.
	templateIdle = 60 * time.Second
	// refreshChunk is the number of templates that the kernel is asked about before
	// mu is released: misses want it, with the pipeline's lock held.
	refreshChunk = 64
	// MaxTemplates is the number of tunnel templates.
	MaxTemplates = 16384
	// ethernetBytes is the Ethernet header, which an MTU does not count.
	ethernetBytes = 14
)

// Tunnel is what a template depends on besides the kernel.
type Tunnel struct {
	Port          uint32 // vxlan port
	Local, Remote netip.Addr
}

// HeldFrame is a frame that waits in a worker for control.
type HeldFrame struct {
	Worker int
	Slot   uint32
}

// Record is a template index in use, in memory that outlives the control process:
// megaflows in the workers' caches name the index, so that the next control process
// must use it for the same tunnel.
type Record struct {
	Port          uint32   // vxlan port, 0: free
	UDPPort       uint32   // outer destination port
	Local, Remote [16]byte // IPv4 mapped into IPv6; Local all zero: chosen by the kernel
}

type entry struct {
	Tunnel
	index    uint32
	udpPort  uint16
	template tunnel.Template // the one that the workers have
	hop      hop
	waiting  []HeldFrame
	// askedAt is the time of the first probe without an answer; zero: the neighbour is
	// known. failed: it did not answer within neighbourTimeout.
	askedAt  time.Time
	probedAt time.Time
	usedAt   time.Time
	failed   bool

	// A route of several next hops (see nexthops.go): the next hops as they were at
	// routeEvents (one more than Kernel.routeEvents), and a member for each. A member
	// has nextHop and parent.
	routeEvents uint32
	nextHops    []nextHop
	members     []*entry
	nextHop     nextHop
	parent      *entry
}

// maxWaiting bounds the frames that wait for one neighbour, as the kernel does
// for its own (unres_qlen); further ones are dropped as DropNoNeighbour.
const maxWaiting = 256

// commandRings sends commands to an engine's workers; it waits for room in their rings
// and drops what a dead engine does not take.
type commandRings interface {
	Push(worker int, msg []byte) bool
	Broadcast(msg []byte)
}

// Templates is the table of templates. mu is taken inside the pipeline's lock and
// outside the lock of the command rings.
type Templates struct {
	kernel *Kernel
	log    *slog.Logger

	mu      sync.Mutex
	rings   commandRings
	uplinks map[string]uint32 // device name -> datapath port
	encaps  map[uint32]Encap  // settings by vxlan port
	byKey   map[Tunnel]*entry
	byIndex []*entry // nil: free
	records []Record // in the counter region
}

func NewTemplates(u *Kernel, log *slog.Logger) *Templates {
	return &Templates{kernel: u, log: log, uplinks: map[string]uint32{}, byKey: map[Tunnel]*entry{}}
}

// Restore takes up the indexes that an earlier control process allocated.
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

// Template returns the index of the template for key, making it if need be.
func (t *Templates) Template(key Tunnel, udpPort uint16) (uint32, packet.DropReason) {
	if !key.Remote.IsValid() || key.Remote.IsUnspecified() ||
		(key.Local.IsValid() && key.Local.Is4() != key.Remote.Is4()) {
		return 0, packet.DropNoRoute
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if key.Remote.IsMulticast() && t.encaps[key.Port].Dev == "" { // by a flow, or of a port that is going
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

// releaseWaiting sends the verdict for the frames that wait for e, unless its neighbour
// is still awaited.
func (t *Templates) releaseWaiting(e *entry) {
	if e.template.State == tunnel.TemplatePending {
		return
	}
	for _, held := range e.waiting {
		t.rings.Push(held.Worker, e.verdict(held.Slot))
	}
	e.waiting = e.waiting[:0]
}

// verdict is the command for a frame held for e.
func (e *entry) verdict(held uint32) []byte {
	switch e.template.State {
	case tunnel.TemplateReady, tunnel.TemplateSpread:
		return datapath.AppendCommand(nil, datapath.CmdRetry, held, nil)
	case tunnel.TemplateNoRoute, tunnel.TemplateFree:
		return datapath.AppendDropHeld(nil, held, packet.DropNoRoute)
	}
	return datapath.AppendDropHeld(nil, held, packet.DropNoNeighbour)
}

// Wait has a held frame wait for template index to be resolved.
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

// MarkUsed marks the templates that megaflows send to, by index, and frees the templates
// that no megaflow has used for templateIdle. No translation may run meanwhile: the
// caller holds the pipeline's lock for writing.
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

// free frees e's index; frames that wait for it are dropped. Caller holds mu.
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

// DropPort frees all templates of vxlan port no. No megaflow uses them any more.
func (t *Templates) DropPort(no uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.byIndex {
		if e != nil && e.parent == nil && e.Port == no {
			t.free(e)
		}
	}
}

// SetPorts replaces the uplink ports, by the names of their devices, and the encap
// options of vxlan ports, by number.
func (t *Templates) SetPorts(uplinks map[string]uint32, outers map[uint32]Encap) {
	t.mu.Lock()
	t.uplinks, t.encaps = uplinks, outers
	t.mu.Unlock()
	t.refresh(true)
}

// Replay sends every template to new workers.
func (t *Templates) Replay(w commandRings, records []Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rings, t.records = w, records
	for _, e := range t.byIndex {
		if e == nil {
			continue
		}
		e.waiting = nil // held by the engine that died
		w.Broadcast(datapath.AppendTemplate(nil, e.index, &e.template))
	}
}

// Reset forgets all templates. No worker has any, and no frame waits.
func (t *Templates) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.byKey)
	t.byIndex, t.rings, t.records = nil, nil, nil
}
