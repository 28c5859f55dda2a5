// SPDX-License-Identifier: Apache-2.0

// Package offload forwards known flows between network devices in the kernel, with BPF programs, without
// the datapath's workers. A port of a device (type=device) with offload=on has a Table: the megaflows
// from this device to another one, in maps of two BPF programs, the filter and the ingress program.
// Their actions may set Ethernet addresses, decrement the TTL and change the VLAN tag before the output
// (Plan), which may be a tunnel (outer.go). The Table of an uplink (the device that carries the
// encapsulated frames of tunnels) with offload=on has the megaflows from tunnels (decap.go).
//
// Only the filter reads the flows. It decides for each frame, so exactly one of kernel and worker
// forwards the frame, whatever the control process changes meanwhile.
//
// The filter accepts frames with at most one VLAN tag: TCP, UDP and ICMP over IP without options,
// extension headers or fragments, and EtherTypes for which a key has no further fields. All other
// frames, such as ARP and neighbour discovery, go to the worker, as do frames that exceed the output's
// MTU. The programs are the same for all flows.
//
// The programs count the frames of each flow. The port's worker reads and clears these counts (Counts)
// and adds them to its own, so that all statistics and timeouts include them. The control process owns a
// Table; the engine process, which has the workers, owns Counts.
package offload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/port"
	"weft/tunnel"
)

const (
	// Version is incremented when the maps or the programs change. A control process takes over only
	// Tables of its own version (Adopt).
	Version = 7
	// MaxMasks is the largest number of different masks of a port's flows in the kernel. The filter looks a
	// frame up under each of them. If a megaflow has yet another mask, its frames go to the worker.
	MaxMasks = 8
	// MaxFlows is the largest number of a port's flows in the kernel. Frames of further megaflows go to
	// the worker, and so do those of megaflows in slots from MaxFlows on.
	MaxFlows = 1 << 16
	// MaxTunnels is the largest number of tunnels into which a port's flows in the kernel lead. Frames
	// into further tunnels go to the worker.
	MaxTunnels = 1 << 12
)

// keyWords is the number of words of a flowtable.Key that the filter compares. The lowest bit of the
// first word, WPort, is 1 in each mask in use. The Key's other words are 0 for all frames that the filter
// accepts.
const keyWords = flowtable.WTunIPv4 + 1

// The build fails here if a Key no longer begins with the 12 words that the filter compares.
var _ = [1]struct{}{}[keyWords-12]

// key is the key of a flow in the map flows: the masked words, then the number of the mask.
type key [keyWords + 1]uint64

// action is the value of a flow in the map flows: what the programs do with its frames.
type action struct {
	ports   uint64 // see row.ports; without the uplink's port for a flow into a tunnel, because Outer.ports has it
	out     uint32 // ifindex of the output's device; 0 for a flow into a tunnel
	longest uint32 // length in bytes of the longest frame that the output takes
	slot    uint32
	tunnel  uint32 // 1 + the index of the tunnel's template; 0: no tunnel
	vni     [4]byte
	rewrite Rewrite
}

// Offsets in bytes of the fields of an action and of a verdict. The verdict is the filter's decision
// about a frame. The filter passes it to the ingress program in the map "verdicts". Action and verdict
// both contain a Rewrite, whose words are in the same order.
const (
	actionPorts     = 0
	actionOut       = 8
	actionLongest   = 12
	actionSlot      = 16
	actionTunnel    = 20
	actionVNI       = 24
	actionRewrite   = 28
	actionBytes     = actionRewrite + rewriteBytes
	verdictPorts    = 0
	verdictOut      = 8
	verdictSlot     = 12
	verdictRewrite  = 16
	verdictDst      = verdictRewrite + 4
	verdictSrc      = verdictDst + 6
	verdictTPID     = verdictSrc + 6 // in network byte order
	verdictTCI      = verdictTPID + 2
	verdictLen      = verdictRewrite + rewriteBytes // length in bytes without padding and tag
	verdictTunnel   = verdictLen + 4                // 1: verdictOuter has outer headers; 0: none
	verdictOuter    = verdictTunnel + 6
	verdictFirst    = verdictOuter + outerLen + 2 // 1 + the slot of the megaflow that has tracked the frame, whose row counts it, too; 0: none
	verdictChecksum = verdictFirst + 4            // offset of the transport checksum
	verdictEnds     = verdictChecksum + 4         // addresses and ports that rewriteNAT writes
	verdictBytes    = verdictEnds + 40
	rewriteBytes    = 20
)

// row has the counts of the megaflow in one slot. The ingress program adds to them. Counts.TakeCounts
// reads them and sets them to 0.
type row struct {
	packets, bytes, usedNS atomic.Uint64
	// ports says for which ports the frames count. It has four fields of 16 bits. From the lowest bits to
	// the highest:
	//   - the port number of the output
	//   - the port number of the tunnel; 0: none
	//   - how many bytes longer a frame is at the output than at the input (two's complement)
	//   - the length in bytes of the tunnel's headers, with the bit fromTunnel
	//
	// If fromTunnel is set, the kernel has removed the tunnel's headers, and the third field does not count
	// them. If it is not set, the kernel has added them, and the third field counts them.
	//
	// The whole word is 0 for a megaflow that only tracks frames. The frames then count for the ports of
	// the megaflow that sends them.
	ports atomic.Uint64
	// serial is the number of the megaflow that the map of stages (connections.go) has for this slot; 0:
	// there is none. No two megaflows in this map get the same number. The control process writes it.
	serial atomic.Uint64
}

// Offsets in bytes of the fields of a row, and its length.
const (
	rowPackets = 0
	rowBytes   = 8
	rowUsed    = 16
	rowPorts   = 24
	rowLen     = 40
)

// fromTunnel is the bit of row.ports that is set if the frames come from the tunnel, not into it.
const fromTunnel = 1 << 63

// activeWords is the number of 64-bit words at the start of the map "active". They are the set of slots
// whose megaflows are in the kernel. The word after them is the seed for the hash of connections.
const activeWords = MaxFlows / 64

// maps are the BPF maps of a Table. The programs use all of them except active.
type maps struct {
	rows, active, connections, flows, masks, outers, verdicts, ends, stages *ebpf.Map
}

// listed returns the maps in the order in which FDs returns their descriptors.
func (m *maps) listed() [FDs]**ebpf.Map {
	return [FDs]**ebpf.Map{&m.rows, &m.active, &m.connections, &m.flows, &m.masks, &m.outers, &m.verdicts, &m.ends, &m.stages}
}

// Output is the device of a port to which flows in the kernel go.
// The kernel sends the frames of these flows to it.
type Output struct {
	Port    uint32 // datapath port number
	Ifindex int
	MTU     int // MTU of the device in bytes, without the Ethernet header
	// Veth is true for a veth. Only a veth can be the output of flows from tunnels. When a program
	// decapsulates a large frame, Linux 6.18 still marks it as a frame of a tunnel. A network card would
	// therefore segment it as if it still had the outer headers.
	Veth bool
}

// Table has the flows from one port in the kernel. For an uplink, these are the flows from its tunnels. Only
// one goroutine at a time may use a Table.
type Table struct {
	maps
	uplink          bool
	filter, ingress *ebpf.Program  // nil for an uplink, and after Adopt, because the programs are attached already
	known           map[endKey]end // contents of the map ends
	memory          memory
	kinds           [MaxMasks]kind
	serial          uint64 // serial of the last stage that was added
	stageCount      int
	installed       map[uint32]installed // by slot
	tunnels         map[uint32]tunnelUse // by template
	paused          bool
}

// tunnelUse counts the flows in the kernel that lead into a tunnel.
type tunnelUse struct {
	flows int
	ready bool // the map outers has the template's headers
}

// installed describes a megaflow that is in the maps of the programs.
type installed struct {
	key    key
	tunnel uint32 // as in action
	stage  bool   // it is a stage, which has no key
}

// kind is a mask, with the number of flows that have it.
type kind struct {
	mask  [keyWords]uint64
	flows int
}

func empty(uplink bool) *Table {
	return &Table{uplink: uplink, serial: rand.Uint64() >> 1, installed: map[uint32]installed{}, tunnels: map[uint32]tunnelUse{}, known: map[endKey]end{}}
}

// New makes an empty Table for a port with a device, and loads its programs. The caller attaches them.
func New() (*Table, error) {
	t, err := newMaps(false)
	if err != nil {
		return nil, err
	}
	if t.filter, t.ingress, err = t.Load(
		asm.Instructions{asm.Mov.Imm(asm.R0, takeWhole), asm.Return()}, asm.Instructions{asm.Mov.Imm(asm.R0, tcxDrop), asm.Return()}); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// NewUplink makes an empty Table for an uplink. The caller calls Load for its programs.
func NewUplink() (*Table, error) { return newMaps(true) }

// Load loads the filter and the ingress program of a Table into the kernel. filterMiss and ingressMiss are
// the instructions with which they end for a frame that no flow matches; R6 is then the context. The caller
// closes the programs.
func (t *Table) Load(filterMiss, ingressMiss asm.Instructions) (filter, ingress *ebpf.Program, err error) {
	if filter, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weft_lookup", Type: ebpf.SocketFilter, License: "Apache-2.0", Instructions: t.filterProgram(filterMiss)}); err != nil {
		return nil, nil, explain("programs", err)
	}
	if ingress, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weft_redirect", Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: t.ingressProgram(ingressMiss)}); err != nil {
		_ = filter.Close()
		return nil, nil, explain("programs", err)
	}
	return filter, ingress, nil
}

// newMaps makes the maps of an empty Table, without programs.
func newMaps(uplink bool) (*Table, error) {
	t := empty(uplink)
	for _, s := range []struct {
		m    **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&t.flows, ebpf.MapSpec{Name: "weft_flows", Type: ebpf.Hash, KeySize: 8 * (keyWords + 1), ValueSize: actionBytes, MaxEntries: MaxFlows, Flags: unix.BPF_F_NO_PREALLOC}},
		{&t.masks, ebpf.MapSpec{Name: "weft_masks", Type: ebpf.Array, KeySize: 4, ValueSize: 8 * keyWords, MaxEntries: MaxMasks}},
		{&t.outers, ebpf.MapSpec{Name: "weft_outers", Type: ebpf.Hash, KeySize: 4, ValueSize: outerBytes, MaxEntries: MaxTunnels, Flags: unix.BPF_F_NO_PREALLOC}},
		{&t.rows, ebpf.MapSpec{Name: "weft_rows", Type: ebpf.Array, KeySize: 4, ValueSize: rowLen, MaxEntries: MaxFlows, Flags: unix.BPF_F_MMAPABLE}},
		{&t.active, ebpf.MapSpec{Name: "weft_active", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: activeWords + 1, Flags: unix.BPF_F_MMAPABLE}},
		{&t.connections, ebpf.MapSpec{Name: "weft_conns", Type: ebpf.Array, KeySize: 4, ValueSize: bucketEntries * entryBytes, MaxEntries: connectionBuckets, Flags: unix.BPF_F_MMAPABLE}},
		{&t.stages, ebpf.MapSpec{Name: "weft_stages", Type: ebpf.Hash, KeySize: 4, ValueSize: uint32(stageBytes), MaxEntries: MaxStages, Flags: unix.BPF_F_NO_PREALLOC}},
		{&t.verdicts, ebpf.MapSpec{Name: "weft_verdicts", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: verdictBytes, MaxEntries: 1}},
		{&t.ends, ebpf.MapSpec{Name: "weft_ends", Type: ebpf.Hash, KeySize: endKeyBytes, ValueSize: endBytes, MaxEntries: tunnel.MaxTerminations, Flags: unix.BPF_F_NO_PREALLOC}},
	} {
		m, err := ebpf.NewMap(&s.spec)
		if err != nil {
			t.Close()
			return nil, explain(s.spec.Name, err)
		}
		*s.m = m
	}
	var err error
	if t.memory, err = openMemory(t.rows.FD(), t.active.FD(), t.connections.FD()); err != nil {
		t.Close()
		return nil, err
	}
	t.memory.active[activeWords].Store(rand.Uint64())
	return t, nil
}

func explain(step string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return errors.New("missing privilege: flows in the kernel need CAP_BPF and CAP_NET_ADMIN")
	}
	return fmt.Errorf("flows in the kernel: %s: %w", step, err)
}

// FDs is the number of descriptors that the method FDs returns.
const FDs = 9

// FDs returns the descriptors of the maps. Adopt needs all of them, OpenCounts the first CountFDs. The
// table owns them.
func (t *Table) FDs() []int {
	var fds []int
	for _, m := range t.listed() {
		fds = append(fds, (*m).FD())
	}
	return fds
}

// CountFDs is the number of descriptors that OpenCounts needs.
const CountFDs = 3

// Adopt takes over the Table of another process from fds, duplicates of its FDs. It deletes all flows. The
// programs stay attached. Adopt owns the descriptors, even if it fails.
func Adopt(fds []int, uplink bool) (*Table, error) {
	t := empty(uplink)
	var failed error
	for i, m := range t.listed() {
		var err error
		if *m, err = ebpf.NewMapFromFD(fds[i]); err != nil {
			failed = err // NewMapFromFD has closed the descriptor
		}
	}
	if failed == nil {
		t.memory, failed = openMemory(t.rows.FD(), t.active.FD(), t.connections.FD())
	}
	if failed == nil {
		failed = t.clearFlows()
	}
	if failed != nil {
		t.Close()
		return nil, explain("take over", failed)
	}
	return t, nil
}

// clearFlows deletes all flows, masks, stages and tunnels from the maps, which an earlier control
// process has filled. Counts and connections stay.
func (t *Table) clearFlows() error {
	for i := range uint32(MaxMasks) {
		if err := t.masks.Put(i, [keyWords]uint64{}); err != nil {
			return err
		}
	}
	if err := deleteAll[key](t.flows); err != nil {
		return err
	}
	if err := deleteAll[[endKeyBytes]byte](t.ends); err != nil {
		return err
	}
	if err := deleteAll[uint32](t.stages); err != nil {
		return err
	}
	for slot := range t.memory.rows {
		t.memory.rows[slot].serial.Store(0)
	}
	return deleteAll[uint32](t.outers)
}

func deleteAll[K any](m *ebpf.Map) error {
	var k K
	for {
		err := m.NextKey(nil, &k)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err == nil {
			err = m.Delete(k)
		}
		if err != nil {
			return err
		}
	}
}

// Filter returns the descriptor of the socket filter, and Ingress returns the ingress program. Only a
// Table that New has made has them.
func (t *Table) Filter() int            { return t.filter.FD() }
func (t *Table) Ingress() *ebpf.Program { return t.ingress }

// Install adds the megaflow in a slot to the kernel. k is its key, and "mask" its mask. Its actions are
// the changes in r and then the output to o. Install returns false if the programs cannot handle the
// megaflow's frames, or if a limit, such as MaxFlows, is reached. The frames then go to the worker.
func (t *Table) Install(slot uint32, k, mask *flowtable.Key, r Rewrite, o Output) bool {
	ports := uint64(o.Port) | r.growth()<<32
	if t.uplink {
		if !o.Veth || r.bits&rewritePop != 0 { // the filter leaves frames from tunnels with a VLAN tag to the worker
			return false
		}
		ports |= uint64(k.InPort())<<16 | outerLen<<48 | fromTunnel
	}
	return t.install(slot, k, mask, action{ports: ports, out: uint32(o.Ifindex), longest: uint32(o.MTU + ethernetLen), slot: slot, rewrite: r})
}

// InstallTunnel does the same as Install, for a megaflow whose output is the tunnel e. The megaflow's
// frames go to the worker until SetOuter has set the outer headers of template e.Template.
func (t *Table) InstallTunnel(slot uint32, k, mask *flowtable.Key, r Rewrite, e Encap) bool {
	if t.uplink || r.bits&rewritePush != 0 || len(t.tunnels) == MaxTunnels && t.tunnels[e.Template].flows == 0 {
		return false
	}
	a := action{ports: uint64(e.Port)<<16 | (r.growth()+outerLen)&0xffff<<32 | outerLen<<48, slot: slot, tunnel: e.Template + 1, rewrite: r}
	binary.BigEndian.PutUint32(a.vni[:], e.VNI<<8)
	return t.install(slot, k, mask, a)
}

func (t *Table) install(slot uint32, k, mask *flowtable.Key, a action) bool {
	if k.Recirc() != 0 || a.rewrite.bits&rewriteTracked != 0 {
		return t.installStage(slot, k, mask, a)
	}
	if slot >= MaxFlows || len(t.installed) == MaxFlows {
		return false
	}
	for i := keyWords; i < flowtable.KeyWords; i++ {
		if k[i]&mask[i] != 0 {
			return false
		}
	}
	if !a.rewrite.suits(k, mask) {
		return false
	}
	if _, has := t.installed[slot]; has {
		return true
	}
	m := [keyWords]uint64(mask[:keyWords])
	masked := key{flowtable.WPort: 1}
	m[flowtable.WPort] = 1
	if t.uplink {
		m[flowtable.WPort], masked[flowtable.WPort] = portMask, uint64(k.InPort())<<32|1
	}
	number := t.kindOf(&m)
	if number < 0 {
		return false
	}
	masked[keyWords] = uint64(number)
	for i := flowtable.WPort + 1; i < keyWords; i++ {
		masked[i] = k[i] & m[i]
	}
	t.memory.active[slot/64].Or(1 << (slot % 64))
	if t.flows.Put(masked, a) != nil {
		t.memory.active[slot/64].And(^(uint64(1) << (slot % 64)))
		return false
	}
	t.kinds[number].flows++
	t.hold(slot, installed{key: masked, tunnel: a.tunnel})
	return true
}

// hold records that the megaflow f of a slot is in the maps. If it sends its frames into a tunnel, hold
// also counts it for the tunnel.
func (t *Table) hold(slot uint32, f installed) {
	t.installed[slot] = f
	if f.tunnel != 0 {
		use := t.tunnels[f.tunnel-1]
		use.flows++
		t.tunnels[f.tunnel-1] = use
	}
}

// portMask has the bits of the key's first word that an uplink's masks have: those of the tunnel's port, and
// the bit that marks a mask in use.
const portMask = flowtable.InPortBits | 1

const ethernetLen = 14

// kindOf returns the number of a mask, and adds the mask if it is new. It returns -1 if all MaxMasks masks
// have flows. A mask without flows may be replaced by the new one, because no flow has its number.
func (t *Table) kindOf(mask *[keyWords]uint64) int {
	free := -1
	for i := range t.kinds {
		k := &t.kinds[i]
		if k.mask == *mask {
			return i
		}
		if k.flows == 0 && (free < 0 || t.kinds[free].mask[0] != 0 && k.mask[0] == 0) {
			free = i
		}
	}
	if free < 0 {
		return -1
	}
	t.kinds[free].mask = *mask
	if t.write(free) != nil {
		t.kinds[free].mask = [keyWords]uint64{}
		return -1
	}
	return free
}

// write writes the mask with number i to the map masks. The filter ends its search at the first mask that
// is not in use. In a paused table, the first mask therefore looks unused. Its second word then tells the
// filter not to look for connections either.
func (t *Table) write(i int) error {
	m := t.kinds[i].mask
	if t.paused && i == 0 {
		m = [keyWords]uint64{1: ^uint64(0)}
	}
	return t.masks.Put(uint32(i), m)
}

// Remove removes the megaflow in a slot, if the table has it. Later frames of it go to the worker. The
// counts stay until the worker takes them.
func (t *Table) Remove(slot uint32) {
	f, has := t.installed[slot]
	if !has {
		return
	}
	if f.stage {
		t.removeStage(slot)
	} else {
		_ = t.flows.Delete(f.key) // error ignored: it cannot fail for a key in the map
		t.kinds[f.key[keyWords]].flows--
	}
	delete(t.installed, slot)
	if f.tunnel != 0 {
		use := t.tunnels[f.tunnel-1]
		use.flows--
		if t.tunnels[f.tunnel-1] = use; use.flows == 0 {
			t.SetOuter(f.tunnel-1, nil)
			delete(t.tunnels, f.tunnel-1)
		}
	}
	t.memory.active[slot/64].And(^(uint64(1) << (slot % 64)))
}

// Discard sets the counts of a slot to 0. The control process calls it for a removed megaflow, after the
// worker has taken the counts, so that the next megaflow in the slot does not get any counts of this one.
// Some may remain: the kernel may have counted a frame later, or an engine process may have died.
func (t *Table) Discard(slot uint32) {
	if slot < MaxFlows {
		(&Counts{memory: t.memory}).TakeCounts(slot)
	}
}

// Has reports whether the kernel forwards the frames of the megaflow in a slot.
func (t *Table) Has(slot uint32) bool {
	f, has := t.installed[slot]
	return has && (f.tunnel == 0 || t.tunnels[f.tunnel-1].ready)
}

// Flows returns the number of megaflows whose frames the kernel forwards. It does not count flows into a
// tunnel whose outer headers are missing in the table.
func (t *Table) Flows() int {
	n := len(t.installed)
	for _, use := range t.tunnels {
		if !use.ready {
			n -= use.flows
		}
	}
	return n
}

// Pause makes all frames go to the worker while "paused" is true.
func (t *Table) Pause(paused bool) {
	t.paused = paused
	_ = t.write(0) // error ignored: it cannot fail for an index in the map
}

// Close closes the descriptors of maps and programs. The programs stay attached as long as other processes
// have their links and sockets open.
func (t *Table) Close() {
	for _, m := range t.listed() {
		if *m != nil {
			_ = (*m).Close()
		}
	}
	for _, p := range []*ebpf.Program{t.filter, t.ingress} {
		if p != nil {
			_ = p.Close()
		}
	}
	t.memory.close()
}

// memory has the maps rows, active and connections, mapped into this process.
type memory struct {
	mapped  [CountFDs][]byte
	rows    []row
	active  []atomic.Uint64
	entries []entry
}

// seed returns the seed for the hash of connections that bucketOf calculates.
func (m *memory) seed() uint64 { return m.active[activeWords].Load() }

func openMemory(rows, active, connections int) (m memory, err error) {
	for i, s := range []struct{ fd, size int }{{rows, MaxFlows * rowLen}, {active, (activeWords + 1) * 8}, {connections, MaxConnections * entryBytes}} {
		page := os.Getpagesize()
		if m.mapped[i], err = unix.Mmap(s.fd, 0, (s.size+page-1)&^(page-1), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			m.close()
			return memory{}, fmt.Errorf("flows in the kernel: map the counts: %w", err)
		}
	}
	m.rows, m.active = shm.View[row](m.mapped[0], 0, MaxFlows), shm.View[atomic.Uint64](m.mapped[1], 0, activeWords+1)
	m.entries = shm.View[entry](m.mapped[2], 0, MaxConnections)
	return m, nil
}

func (m *memory) close() {
	for i := range m.mapped {
		if m.mapped[i] != nil {
			_ = unix.Munmap(m.mapped[i])
		}
	}
	*m = memory{}
}

// Counts is the engine process's access to the maps of a port's Table. It reads the counts of the flows,
// and stores the connections that are offloaded to the kernel. Only the port's worker uses it.
type Counts struct {
	memory memory
	token  uint64                             // token of the last entry that was written
	used   [MaxConnections / 64]atomic.Uint64 // set of entries in use
}

// OpenCounts maps the memory of a Table's counts and connections. fds begins with the first CountFDs of the
// Table's FDs, which the caller still owns.
func OpenCounts(fds []int) (*Counts, error) {
	m, err := openMemory(fds[0], fds[1], fds[2])
	if err != nil {
		return nil, err
	}
	c := &Counts{memory: m, token: rand.Uint64() >> 1}
	for i := range m.entries {
		if m.entries[i][entryToken].Load() != 0 { // the entry was written by an earlier engine
			c.used[i/64].Or(1 << (i % 64))
		}
	}
	return c, nil
}

// TakeCounts implements port.Offloaded: it returns the counts of the megaflow in a slot since the last
// call, and sets them to 0.
func (c *Counts) TakeCounts(slot uint32) (n port.OffloadCounts) {
	if slot >= uint32(len(c.memory.rows)) {
		return n
	}
	r := &c.memory.rows[slot]
	if r.packets.Load() == 0 {
		return n
	}
	n.Packets, n.Bytes, n.UsedNS = r.packets.Swap(0), r.bytes.Swap(0), r.usedNS.Load()
	ports := r.ports.Load()
	n.Out, n.Tunnel, n.Growth = uint32(ports&0xffff), uint32(ports>>16&0xffff), int16(ports>>32)
	n.Outer, n.Received, n.Tracked = uint32(ports>>48&0x7fff), ports&fromTunnel != 0, ports == 0
	return n
}

// OffloadSlots implements port.Offloaded: it returns a number that is higher than all slots of megaflows
// in the kernel.
func (c *Counts) OffloadSlots() uint32 { return MaxFlows }

// NextOffloaded implements port.Offloaded: it returns the first slot that is "from" or higher and whose
// megaflow is in the kernel.
func (c *Counts) NextOffloaded(from uint32) (slot uint32, found bool) {
	for at := int(from / 64); at < activeWords; at++ {
		set := c.memory.active[at].Load()
		if at == int(from/64) {
			set &= ^uint64(0) << (from % 64)
		}
		if set != 0 {
			return uint32(at*64 + bits.TrailingZeros64(set)), true
		}
	}
	return 0, false
}

// Close unmaps the memory. The worker must not use c any more.
func (c *Counts) Close() { c.memory.close() }
