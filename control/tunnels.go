package control

import (
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"weft/datapath"
	"weft/flowtable"
	"weft/packet"
	"weft/tunnel"
)

// Tunnel templates: one for each vxlan port, local and remote address that a
// megaflow sends to, kept as the kernel's routes and neighbours have it. A
// change of those changes the template in the workers, never a megaflow.
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
	// others get a chance at tunnels.mu: misses want it, with Daemon.mu held.
	refreshChunk = 64
	// outerOverhead is the Ethernet header, which an MTU does not count.
	outerOverhead = 14
)

// tunnelKey is what a template depends on besides the kernel.
type tunnelKey struct {
	port          uint32 // vxlan port
	local, remote netip.Addr
}

// heldFrame is a frame that waits in a worker.
type heldFrame struct {
	worker int
	slot   uint32
}

type tunnelEntry struct {
	tunnelKey
	index    uint32
	udpPort  uint16
	template tunnel.Template // as the workers have it
	hop      hop
	waiting  []heldFrame
	// askedAt is when the neighbour was asked for without an answer so far; zero:
	// it is known. failed: it has not answered in time.
	askedAt  time.Time
	probedAt time.Time
	usedAt   time.Time
	failed   bool

	// Of a route of several ways, see ways.go: the ways, as routes (one more than
	// underlay.routes) had them, and a member for each, which has way and parent.
	routes  uint32
	ways    []way
	members []*tunnelEntry
	way     way
	parent  *tunnelEntry
}

// maxWaiting bounds the frames that wait for one neighbour, as the kernel does
// for its own (unres_qlen); further ones are dropped as DropNoNeighbour.
const maxWaiting = 256

// tunnels is the table of templates. mu is taken inside Daemon.mu and outside
// of workers.mu.
type tunnels struct {
	underlay *underlay
	log      *slog.Logger

	mu      sync.Mutex
	workers *workers
	uplinks map[string]uint32 // device name -> datapath port
	outers  map[uint32]outer  // settings by vxlan port
	byKey   map[tunnelKey]*tunnelEntry
	byIndex []*tunnelEntry // nil: free
	records []tunnelRecord // in the counter region
}

func newTunnels(u *underlay, log *slog.Logger) *tunnels {
	return &tunnels{underlay: u, log: log, uplinks: map[string]uint32{}, byKey: map[tunnelKey]*tunnelEntry{}}
}

// restore takes the indexes up that an earlier control process gave out.
func (t *tunnels) restore(w *workers, records []tunnelRecord) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workers, t.records = w, records
	now := time.Now()
	for i, r := range records {
		if r.Port == 0 {
			continue
		}
		for len(t.byIndex) <= i {
			t.byIndex = append(t.byIndex, nil)
		}
		key := tunnelKey{port: r.Port, remote: netip.AddrFrom16(r.Remote).Unmap()}
		if r.Local != [16]byte{} {
			key.local = netip.AddrFrom16(r.Local).Unmap()
		}
		e := &tunnelEntry{tunnelKey: key, index: uint32(i), udpPort: uint16(r.UDPPort), usedAt: now}
		t.byIndex[i], t.byKey[key] = e, e
	}
}

// template returns the index of the template for key, making it if need be.
func (t *tunnels) template(key tunnelKey, udpPort uint16) (uint32, packet.DropReason) {
	if !key.remote.IsValid() || key.remote.IsUnspecified() ||
		(key.local.IsValid() && key.local.Is4() != key.remote.Is4()) {
		return 0, packet.DropNoRoute
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if key.remote.IsMulticast() && t.outers[key.port].dev == "" { // by a flow, or of a port that is going
		return 0, packet.DropNoRoute
	}
	now := time.Now()
	if e := t.byKey[key]; e != nil && e.udpPort == udpPort {
		e.usedAt = now
		return e.index, packet.DropNone
	}
	e := &tunnelEntry{tunnelKey: key, udpPort: udpPort, usedAt: now}
	if !t.allocate(e) {
		return 0, packet.DropNoRoute
	}
	t.byKey[key] = e
	t.records[e.index] = e.record()
	t.refreshEntry(e, now)
	return e.index, packet.DropNone
}

func (t *tunnels) allocate(e *tunnelEntry) bool {
	for i, old := range t.byIndex {
		if old == nil {
			e.index, t.byIndex[i] = uint32(i), e
			return true
		}
	}
	if len(t.byIndex) >= maxTemplates {
		return false
	}
	e.index = uint32(len(t.byIndex))
	t.byIndex = append(t.byIndex, e)
	return true
}

func (e *tunnelEntry) record() tunnelRecord {
	r := tunnelRecord{Port: e.port, UDPPort: uint32(e.udpPort), Remote: e.remote.As16()}
	if e.local.IsValid() {
		r.Local = e.local.As16()
	}
	return r
}

// refresh asks the kernel again for all templates, or those whose neighbour is
// awaited or stale, and tells the workers what has changed.
func (t *tunnels) refresh(all bool) {
	for from, more := 0, true; more; from += refreshChunk {
		more = t.refreshSome(from, all)
	}
}

// refreshSome does so for refreshChunk templates, and reports whether there are more.
func (t *tunnels) refreshSome(from int, all bool) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for i := from; i < min(from+refreshChunk, len(t.byIndex)); i++ {
		e := t.byIndex[i]
		if e != nil && e.parent == nil && (all || e.hop.state != hopReady && e.hop.state != hopNoRoute) {
			t.refreshEntry(e, now)
		}
	}
	return from+refreshChunk < len(t.byIndex)
}

func (t *tunnels) refreshEntry(e *tunnelEntry, now time.Time) {
	device := ""
	if e.remote.IsMulticast() {
		device = t.outers[e.port].dev
	}
	e.hop = t.underlay.resolve(e.local, e.remote, device)
	gone := t.followWays(e)
	if len(e.members) > 0 && e.hop.local.IsValid() {
		t.change(e, t.spread(e, now))
	} else {
		t.change(e, t.settle(e, now))
	}
	for _, m := range gone {
		t.free(m)
	}
	t.answer(e)
}

// settle makes the template of one way, whose hop is known.
func (t *tunnels) settle(e *tunnelEntry, now time.Time) tunnel.Template {
	uplink, isUplink := t.uplinks[e.hop.device]
	if !isUplink && e.hop.state != hopNoRoute {
		e.hop.state = hopNoRoute
		e.hop.why = "the route to " + e.remote.String() + " leaves through " + e.hop.device + ", which is no af_xdp port"
	}
	t.pursue(e, now)
	return e.build(uplink, t.outers[e.port])
}

// change gives the workers another template.
func (t *tunnels) change(e *tunnelEntry, next tunnel.Template) {
	if next != e.template {
		if next.State == tunnel.TemplateNoRoute || next.State == tunnel.TemplateNoNeighbour {
			t.log.Warn("tunnel is down", "remote", e.remote, "why", e.hop.why)
		}
		e.template = next
		t.workers.broadcast(datapath.AppendTemplate(nil, e.index, &next))
	}
}

// pursue keeps the kernel asking for the neighbour as long as it is needed, and
// gives up on the frames that wait for it after neighbourTimeout.
func (t *tunnels) pursue(e *tunnelEntry, now time.Time) {
	switch e.hop.state {
	case hopReady, hopNoRoute:
		e.askedAt, e.failed = time.Time{}, false
		return
	case hopStale:
		e.askedAt, e.failed = time.Time{}, false
	case hopFailed:
		e.failed = e.failed || !e.askedAt.IsZero()
		if e.askedAt.IsZero() {
			e.askedAt = now
		}
	case hopPending:
		if e.askedAt.IsZero() {
			e.askedAt = now
		}
	}
	if !e.askedAt.IsZero() && now.Sub(e.askedAt) >= neighbourTimeout {
		e.failed = true
		e.hop.why = e.hop.next.String() + " does not answer on " + e.hop.device
	}
	if now.Sub(e.probedAt) < reprobe || now.Sub(e.usedAt) > templateIdle {
		return
	}
	e.probedAt = now
	if err := t.underlay.probe(&e.hop); err != nil {
		t.log.Warn("the kernel does not ask for a neighbour", "neighbour", e.hop.next, "device", e.hop.device, "error", err)
	}
}

// build makes the template as it should be.
func (e *tunnelEntry) build(uplink uint32, set outer) tunnel.Template {
	switch {
	case e.hop.state == hopNoRoute:
		return tunnel.Template{State: tunnel.TemplateNoRoute}
	case e.hop.state == hopReady || e.hop.state == hopStale:
	case e.failed:
		return tunnel.Template{State: tunnel.TemplateNoNeighbour}
	default:
		return tunnel.Template{State: tunnel.TemplatePending}
	}
	p := set.params(e.remote, e.udpPort)
	p.Port, p.MTU = uplink, uint16(min(e.hop.mtu+outerOverhead, 1<<16-1))
	p.SrcMAC, p.DstMAC = e.hop.srcMAC, e.hop.dstMAC
	p.Local, p.Remote = e.hop.local, e.remote
	built, err := tunnel.Build(p)
	if err != nil {
		e.hop.why = err.Error()
		return tunnel.Template{State: tunnel.TemplateNoRoute}
	}
	return built
}

// answer lets go the frames that wait for e, unless they must go on waiting.
func (t *tunnels) answer(e *tunnelEntry) {
	if e.template.State == tunnel.TemplatePending {
		return
	}
	for _, held := range e.waiting {
		t.workers.push(held.worker, e.verdict(held.slot))
	}
	e.waiting = e.waiting[:0]
}

// verdict is the command for a frame held for e.
func (e *tunnelEntry) verdict(held uint32) []byte {
	switch e.template.State {
	case tunnel.TemplateReady, tunnel.TemplateSpread:
		return datapath.AppendCommand(nil, datapath.CmdRetry, held, nil)
	case tunnel.TemplateNoRoute, tunnel.TemplateFree:
		return datapath.AppendDropHeld(nil, held, packet.DropNoRoute)
	}
	return datapath.AppendDropHeld(nil, held, packet.DropNoNeighbour)
}

// wait has a held frame wait for template index to be resolved.
func (t *tunnels) wait(index uint32, held heldFrame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if int(index) >= len(t.byIndex) || t.byIndex[index] == nil {
		t.workers.push(held.worker, datapath.AppendDropHeld(nil, held.slot, packet.DropNoRoute))
		return
	}
	e := t.byIndex[index]
	e.usedAt = time.Now()
	if e.template.State != tunnel.TemplatePending {
		t.workers.push(held.worker, e.verdict(held.slot))
		return
	}
	if len(e.waiting) >= maxWaiting {
		t.workers.push(held.worker, datapath.AppendDropHeld(nil, held.slot, packet.DropNoNeighbour))
		return
	}
	e.waiting = append(e.waiting, held)
	t.pursue(e, time.Now())
}

// unsettled tells whether a neighbour is awaited, so that refresh must come
// again without an event.
func (t *tunnels) unsettled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.byIndex {
		if e != nil && !e.askedAt.IsZero() && !e.failed {
			return true
		}
	}
	return false
}

// use marks the templates that megaflows send to, and frees those that none has
// used for templateIdle. No translation may run meanwhile: caller holds Daemon.mu
// alone.
func (t *tunnels) use(list []*megaflow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, m := range list {
		for _, a := range m.actions {
			if a.Op == flowtable.OpTunnel && int(a.U32) < len(t.byIndex) && t.byIndex[a.U32] != nil {
				t.byIndex[a.U32].usedAt = now
			}
		}
	}
	for _, e := range t.byIndex {
		if e != nil && e.parent == nil && now.Sub(e.usedAt) > templateIdle {
			t.free(e)
		}
	}
}

// free frees e's index; frames that wait for it are dropped. Caller holds mu.
func (t *tunnels) free(e *tunnelEntry) {
	e.template = tunnel.Template{}
	t.workers.broadcast(datapath.AppendTemplate(nil, e.index, &e.template))
	t.answer(e)
	for _, m := range e.members {
		t.free(m)
	}
	if t.byIndex[e.index] = nil; e.parent != nil {
		return
	}
	delete(t.byKey, e.tunnelKey)
	t.records[e.index] = tunnelRecord{}
}

// drop frees all templates of vxlan port no. No megaflow uses them any more.
func (t *tunnels) drop(no uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.byIndex {
		if e != nil && e.parent == nil && e.port == no {
			t.free(e)
		}
	}
}

// setPorts replaces the map of devices that are af_xdp ports, and the settings
// of vxlan ports.
func (t *tunnels) setPorts(uplinks map[string]uint32, outers map[uint32]outer) {
	t.mu.Lock()
	t.uplinks, t.outers = uplinks, outers
	t.mu.Unlock()
	t.refresh(true)
}

// replay sends every template to new workers.
func (t *tunnels) replay(w *workers, records []tunnelRecord) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.workers, t.records = w, records
	for _, e := range t.byIndex {
		if e == nil {
			continue
		}
		e.waiting = nil // held by the engine that died
		w.broadcast(datapath.AppendTemplate(nil, e.index, &e.template))
	}
}
