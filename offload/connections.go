// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"fmt"
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf/asm"

	"weft/conntrack"
	"weft/flowtable"
	"weft/packet"
)

// This file offloads established connections to the kernel. Package conntrack decides which connections
// these are, and calls the methods of conntrack.Kernel that Counts has. A connection has an entry for
// each direction, in the BPF map of the port at which the frames of that direction arrive. The entry
// names two megaflows, called stages: the one whose action tracks the frame, and the one that matches
// the frame after tracking. The control process writes both stages to another BPF map.
//
// The filter finds the entry by the addresses and ports of a frame, and checks that the frame matches
// both stages. It then tells the ingress program to execute the second stage's actions, and the NAT of
// the connection.
//
// The engine process writes the entries to mapped memory. Every entry has a token: a number that no
// other entry ever had, or 0 while the entry is not in use. The filter reads the token before and after
// the other words of an entry. If the token has changed, the engine process has rewritten the entry
// meanwhile.

const (
	// MaxConnections is the largest number of connections of a port that are offloaded to the kernel. A
	// connection with both directions on this port counts twice. Frames of further connections go to the
	// worker.
	MaxConnections = connectionBuckets * bucketEntries
	// MaxStages is the largest number of a port's megaflows in the kernel that track frames or match
	// tracked frames. Frames of further such megaflows go to the worker.
	MaxStages = 1 << 12

	connectionBuckets = 1 << 12
	bucketEntries     = 4
)

// entry is one direction of a connection that is offloaded to the kernel.
type entry [entryWords]atomic.Uint64

// Words of an entry. The engine process writes them. The filter writes only entrySeen, which it sets to
// 1.
const (
	entryToken        = iota
	entryAddresses               // Lease.Addresses, 4 words
	entryEnds         = iota + 3 // see endsOf
	entrySlots                   // slot of the first stage | slot of the second stage<<32
	entryFirst                   // serial of the first stage
	entrySecond                  // serial of the second stage
	entryNewAddresses            // Lease.NewAddresses, 4 words
	entryNewPorts     = iota + 6 // translates<<32 | new ports
	entrySeen                    // 1: the kernel has forwarded a frame since the last call of NextLease
	entryRef                     // number of the connection<<32 | generation
	entryDir                     // direction | idle<<8
	_
	entryWords
)

const (
	translates = 1 << 32 // in entryNewPorts
	idleShift  = 8       // in entryDir
	overIPv6   = 1 << 7  // in entryEnds
	entryBytes = 8 * entryWords
)

// endsOf returns the word entryEnds for one direction of a connection: ports 32 | scope 24 | overIPv6 1
// | protocol 7. The scope is the VNI or the VLAN tag. The filter builds the same word from a frame.
func endsOf(l *conntrack.Lease) uint64 {
	ends := uint64(l.Ports)<<32 | uint64(l.Scope&0xffffff)<<8 | uint64(l.Proto)
	if l.IPv6 {
		ends |= overIPv6
	}
	return ends
}

// bucketOf hashes one direction of a connection. It returns the index of the first entry in the bucket
// for this hash. "seed" is the seed of the port's table. The filter calculates the same index from a
// frame.
func bucketOf(l *conntrack.Lease, seed uint64) uint32 {
	h := l.Addresses[0]
	if l.IPv6 {
		h = fold(h^seed, l.Addresses[1]^seed^connectionSalt)
		h = fold(h^l.Addresses[2], l.Addresses[3]^seed)
	}
	return uint32(fold(h^seed, endsOf(l)^connectionSalt)>>32) % connectionBuckets * bucketEntries
}

// fold returns the XOR of both halves of the product of a and b. In the BPF programs, mix does the same.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

const connectionSalt = 0x2d358dccaa6c78a5

// PutLease implements conntrack.Kernel: it stores one direction of a connection in a free entry of its
// bucket, and returns the entry's index. If the bucket has no free entry, ok is false. Entries that the
// kernel no longer uses become free when the worker calls NextLease and then ClearLease.
func (c *Counts) PutLease(l conntrack.Lease) (place uint32, ok bool) {
	at := bucketOf(&l, c.memory.seed())
	for place = at; place < at+bucketEntries; place++ {
		e := &c.memory.entries[place]
		if e[entryToken].Load() != 0 {
			continue
		}
		newPorts := uint64(l.NewPorts)
		if l.Translates {
			newPorts |= translates
		}
		for word, v := range [entryWords]uint64{
			entryEnds: endsOf(&l), entrySlots: uint64(l.First.Slot) | uint64(l.Second.Slot)<<32,
			entryFirst: l.First.Serial, entrySecond: l.Second.Serial, entryNewPorts: newPorts,
			entryRef: uint64(l.Ref.Number)<<32 | uint64(l.Ref.Generation), entryDir: uint64(l.Dir),
		} {
			e[word].Store(v)
		}
		for i := range l.Addresses {
			e[entryAddresses+i].Store(l.Addresses[i])
			e[entryNewAddresses+i].Store(l.NewAddresses[i])
		}
		c.token = max(c.token+1, 1)
		e[entryToken].Store(c.token) // written last; pairs with the filter's first read of the token
		c.used[place/64].Or(1 << (place % 64))
		return place, true
	}
	return 0, false
}

// ClearLease implements conntrack.Kernel: it frees the entry with the index "place". Later frames of
// this direction of the connection go to the worker.
func (c *Counts) ClearLease(place uint32) {
	place %= MaxConnections
	c.memory.entries[place][entryToken].Store(0)
	c.used[place/64].And(^(uint64(1) << (place % 64)))
}

// HasLease implements conntrack.Kernel: it reports whether the entry with the index "place" is in use
// and names these two megaflows.
func (c *Counts) HasLease(place uint32, first, second conntrack.Stage) bool {
	e := &c.memory.entries[place%MaxConnections]
	return e[entryToken].Load() != 0 && e[entrySlots].Load() == uint64(first.Slot)|uint64(second.Slot)<<32 &&
		e[entryFirst].Load() == first.Serial && e[entrySecond].Load() == second.Serial
}

// Serial implements conntrack.Kernel: it returns the serial number of the megaflow that the map of
// stages has for this slot, or 0 if it has none.
func (c *Counts) Serial(slot uint32) uint64 {
	if slot >= uint32(len(c.memory.rows)) {
		return 0
	}
	return c.memory.rows[slot].serial.Load()
}

// NextLease implements conntrack.Kernel: it returns the first entry in use whose index is "from" or
// higher. l.Seen reports whether the kernel has forwarded a frame by this entry since the last call for
// it. NextLease clears the entry's word entrySeen for this.
func (c *Counts) NextLease(from uint32) (place uint32, l conntrack.LeaseUse, found bool) {
	for place = from; place < MaxConnections; {
		set := c.used[place/64].Load() >> (place % 64)
		if set == 0 {
			place = place&^63 + 64
			continue
		}
		place += uint32(bits.TrailingZeros64(set))
		e := &c.memory.entries[place]
		ref, dir := e[entryRef].Load(), e[entryDir].Load()
		l = conntrack.LeaseUse{Ref: conntrack.Ref{Number: uint32(ref >> 32), Generation: uint32(ref)}, Dir: uint8(dir), Seen: e[entrySeen].Load() != 0}
		if dir += 1 << idleShift; l.Seen {
			e[entrySeen].Store(0)
			dir &= 1<<idleShift - 1
		}
		e[entryDir].Store(dir)
		l.Idle = uint32(dir >> idleShift)
		return place, l, true
	}
	return 0, l, false
}

// Connections returns the number of connections of the port that are offloaded to the kernel. A
// connection with both directions on this port counts twice.
func (t *Table) Connections() (n int) {
	for i := range t.memory.entries {
		if t.memory.entries[i][entryToken].Load() != 0 {
			n++
		}
	}
	return n
}

// stage is a megaflow that tracks frames, or one that matches tracked frames. A frame matches the stage
// if, for each word of stageWords, the frame's key and "want" are equal in all bits of "mask".
type stage struct {
	serial     uint64
	mask, want [len(stageWords)]uint64
	action     action // executed if this is the second stage of a connection
}

// Offsets in bytes of the fields of a stage, which is a value in a BPF map.
const (
	stageSerial = 0
	stageMask   = 8
	stageWant   = stageMask + 8*int16(len(stageWords))
	stageAction = stageWant + 8*int16(len(stageWords))
	stageBytes  = int(stageAction) + actionBytes
)

// stageWords are the indexes of the key words that the filter compares with a stage. Other words are 0
// for TCP and UDP frames, or follow from the addresses and ports of the connection.
var stageWords = [...]int{flowtable.WPort, flowtable.WEthDst, flowtable.WEthSrc, flowtable.WIP, flowtable.WL4, flowtable.WTunID, flowtable.WTunIPv4}

// connectionBits are the key bits that follow from the addresses, ports and protocol in an entry. The
// filter does not compare them with the stages.
var connectionBits = flowtable.Key{flowtable.WPort: 0xffffffff, flowtable.WIP: 0xff << flowtable.ProtoShift,
	flowtable.WIPv4: ^uint64(0), flowtable.WIPv6Src: ^uint64(0), flowtable.WIPv6Src + 1: ^uint64(0), flowtable.WIPv6Dst: ^uint64(0),
	flowtable.WIPv6Dst + 1: ^uint64(0), flowtable.WL4: 0xffffffff << flowtable.TPDstShift}

// InstallTracking adds the megaflow in a slot to the kernel. The actions of this megaflow must only
// track the frames and look them up again. k and mask are its key and mask. InstallTracking returns
// false if the frames of the megaflow must still go to the worker.
func (t *Table) InstallTracking(slot uint32, k, mask *flowtable.Key) bool {
	return t.installStage(slot, k, mask, action{slot: slot, rewrite: Rewrite{bits: rewriteTracked}})
}

// installStage adds a megaflow that tracks frames, or one that matches tracked frames, to the kernel. It
// returns false if the megaflow's frames must still go to the worker.
func (t *Table) installStage(slot uint32, k, mask *flowtable.Key, a action) bool {
	tracks := a.rewrite.bits&rewriteTracked != 0
	if slot >= MaxFlows || t.stageCount == MaxStages || tracks == (k.Recirc() != 0) || !a.rewrite.suits(k, mask) {
		return false
	}
	if _, has := t.installed[slot]; has {
		return true
	}
	a.rewrite.bits &^= rewriteTracked
	s := stage{serial: t.serial + 1, action: a}
	rest := *mask
	for i := range connectionBits {
		rest[i] &^= connectionBits[i]
	}
	for i, w := range stageWords {
		s.mask[i], s.want[i] = rest[w], k[w]&rest[w]
		rest[w] = 0
	}
	if !t.uplink { // all frames of the table come from the same port
		s.mask[0], s.want[0] = 0, 0
	}
	for w := range rest {
		if (w < flowtable.WCT || tracks) && k[w]&rest[w] != 0 { // a frame of TCP or UDP has 0 here
			return false
		}
	}
	t.memory.active[slot/64].Or(1 << (slot % 64))
	if t.stages.Put(slot, s) != nil {
		t.memory.active[slot/64].And(^(uint64(1) << (slot % 64)))
		return false
	}
	t.serial++
	t.stageCount++
	t.hold(slot, installed{tunnel: a.tunnel, stage: true})
	t.memory.rows[slot].serial.Store(s.serial) // from now on, the engine may lend connections that use this stage
	return true
}

// removeStage removes the megaflow in a slot from the map of stages. Frames of connections that use it
// go to the worker.
func (t *Table) removeStage(slot uint32) {
	t.memory.rows[slot].serial.Store(0)
	_ = t.stages.Delete(slot) // error ignored: it cannot fail for a key in the map
	t.stageCount--
}

// Offsets from the frame pointer of the data that findConnection stores on the stack.
const (
	atConnection = atEndKey - 80 // first word of the addresses, see Lease.Addresses
	atEnds       = atConnection + 8
	atSlots      = atConnection + 16 // first and second stage
	atSerials    = atConnection + 24 // of both stages
	atNew        = atConnection + 40 // 4 words
	atNewPorts   = atConnection + 72
)

// findConnection returns the part of the filter for a frame that no flow matches. It looks for an
// offloaded connection of the frame. R0 becomes the action of the second megaflow in the connection's
// entry. If the connection has NAT, the key on the stack gets the new addresses and ports.
func (t *Table) findConnection() asm.Instructions {
	const ackOnly, flags = 0x10, 0x17 // of FIN, SYN, RST and ACK
	p := asm.Instructions{
		asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WEthDst, asm.DWord).WithSymbol("connection"), asm.And.Imm(asm.R1, 0xffff),
		asm.Mov.Imm(asm.R4, 0), asm.JEq.Imm(asm.R1, packet.EtherTypeIPv4, "family"),
		asm.Mov.Imm(asm.R4, overIPv6), asm.JNE.Imm(asm.R1, packet.EtherTypeIPv6, toWorker),
		asm.LoadMem(asm.R3, asm.RFP, atKey+8*flowtable.WIP, asm.DWord).WithSymbol("family"), asm.Mov.Reg(asm.R5, asm.R3), asm.RSh.Imm(asm.R5, flowtable.ProtoShift),
		asm.JEq.Imm(asm.R5, packet.ProtoUDP, "tuple"), asm.JNE.Imm(asm.R5, packet.ProtoTCP, toWorker),
		asm.And.Imm(asm.R3, flags), asm.JNE.Imm(asm.R3, ackOnly, toWorker),
		asm.LoadMem(asm.R2, asm.RFP, atKey+8*flowtable.WL4, asm.DWord).WithSymbol("tuple"), asm.RSh.Imm(asm.R2, 32), asm.LSh.Imm(asm.R2, 32),
		asm.Or.Reg(asm.R2, asm.R5), asm.Or.Reg(asm.R2, asm.R4),
	}
	if t.uplink {
		p = append(p, asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WTunID, asm.DWord), asm.And.Imm(asm.R1, 0xffffff))
	} else {
		p = append(p, asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WEthSrc, asm.DWord), asm.And.Imm(asm.R1, flowtable.VLANPresent|flowtable.VLANID))
	}
	p = append(p,
		asm.LSh.Imm(asm.R1, 8), asm.Or.Reg(asm.R2, asm.R1), asm.StoreMem(asm.RFP, atEnds, asm.R2, asm.DWord),
		asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WIPv4, asm.DWord), asm.LoadMem(asm.R2, asm.RFP, atKey+8*flowtable.WIPv6Src, asm.DWord),
		asm.Or.Reg(asm.R1, asm.R2), // one of both is 0
		asm.StoreMem(asm.RFP, atConnection, asm.R1, asm.DWord))
	p = append(p, hashConnection(t.memory.seed())...)
	p = append(p,
		asm.RSh.Imm(asm.R1, 32), asm.And.Imm(asm.R1, connectionBuckets-1), asm.StoreMem(asm.RFP, atIndex, asm.R1, asm.Word),
		asm.LoadMapPtr(asm.R1, t.connections.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, atIndex),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, toWorker))
	for i := range bucketEntries {
		further := fmt.Sprint("entry ", i)
		p = append(p, loadToken(asm.R1)...)
		p = append(p,
			asm.JEq.Imm(asm.R1, 0, further),
			asm.LoadMem(asm.R2, asm.R0, 8*entryAddresses, asm.DWord), asm.LoadMem(asm.R3, asm.RFP, atConnection, asm.DWord), asm.JNE.Reg(asm.R2, asm.R3, further),
			asm.LoadMem(asm.R2, asm.R0, 8*entryEnds, asm.DWord), asm.LoadMem(asm.R3, asm.RFP, atEnds, asm.DWord), asm.JNE.Reg(asm.R2, asm.R3, further))
		for word := int16(1); word < 4; word++ { // the key has 0 there for IPv4
			p = append(p,
				asm.LoadMem(asm.R2, asm.R0, 8*(entryAddresses+word), asm.DWord), asm.LoadMem(asm.R3, asm.RFP, atKey+8*(flowtable.WIPv6Src+word), asm.DWord),
				asm.JNE.Reg(asm.R2, asm.R3, further))
		}
		p = append(p,
			asm.Ja.Label("entry"),
			asm.Add.Imm(asm.R0, entryBytes).WithSymbol(further))
	}
	p = append(p, asm.Ja.Label(toWorker))
	return slices.Concat(p, readEntry(), t.findStage(0), translateKey(), t.findStage(1), asm.Instructions{
		asm.LoadMem(asm.R1, asm.R0, stageAction+actionOut, asm.Word), asm.LoadMem(asm.R2, asm.R0, stageAction+actionTunnel, asm.Word),
		asm.Or.Reg(asm.R1, asm.R2), asm.JEq.Imm(asm.R1, 0, toWorker),
		// if the connection has two different megaflows, the ingress program also counts the frame for the
		// one that tracks it
		asm.LoadMem(asm.R1, asm.RFP, atSlots, asm.Word), asm.LoadMem(asm.R2, asm.RFP, atSlots+4, asm.Word), asm.JEq.Reg(asm.R1, asm.R2, "one stage"),
		asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R8, verdictFirst, asm.R1, asm.Word),
		asm.Add.Imm(asm.R0, int32(stageAction)).WithSymbol("one stage"),
		asm.Ja.Label("hit"),
	})
}

// hashConnection makes R1 the hash that bucketOf calculates for the connection of a frame. Before, R1 is
// the first word of the addresses, and R4 is overIPv6 or 0. hashConnection changes R0 to R5.
func hashConnection(seed uint64) asm.Instructions {
	xor := func(r asm.Register, value uint64) asm.Instructions {
		return asm.Instructions{asm.LoadImm(asm.R3, int64(value), asm.DWord), asm.Xor.Reg(r, asm.R3)}
	}
	word := func(r asm.Register, w int16) asm.Instructions {
		return asm.Instructions{asm.LoadMem(r, asm.RFP, atKey+8*w, asm.DWord)}
	}
	return slices.Concat(
		asm.Instructions{asm.JEq.Imm(asm.R4, 0, "hash")},
		xor(asm.R1, seed), word(asm.R2, flowtable.WIPv6Src+1), xor(asm.R2, seed^connectionSalt), mix(),
		word(asm.R2, flowtable.WIPv6Dst), asm.Instructions{asm.Xor.Reg(asm.R1, asm.R2)}, word(asm.R2, flowtable.WIPv6Dst+1), xor(asm.R2, seed), mix(),
		asm.Instructions{asm.LoadMem(asm.R2, asm.RFP, atEnds, asm.DWord).WithSymbol("hash")},
		xor(asm.R1, seed), xor(asm.R2, connectionSalt), mix())
}

// loadToken loads the token of the entry at R0 into register r. The processor must not reorder this load with
// other reads of the entry. amd64 keeps the order of reads; on other processors an atomic addition of 0
// keeps it.
func loadToken(r asm.Register) asm.Instructions {
	if runtime.GOARCH == "amd64" {
		return asm.Instructions{asm.LoadMem(r, asm.R0, 8*entryToken, asm.DWord)}
	}
	return asm.Instructions{asm.Mov.Imm(r, 0), asm.FetchAdd.Mem(asm.R0, r, asm.DWord, 8*entryToken)}
}

// readEntry copies the entry at R0 to the stack and sets its word entrySeen. R1 is the entry's token,
// read before the copy. If the token differs after the copy, the frame goes to the worker.
func readEntry() asm.Instructions {
	p := asm.Instructions{asm.Mov.Reg(asm.R3, asm.R1).WithSymbol("entry")}
	for word := int16(entrySlots); word <= entryNewPorts; word++ {
		p = append(p, asm.LoadMem(asm.R2, asm.R0, 8*word, asm.DWord), asm.StoreMem(asm.RFP, atSlots+8*(word-entrySlots), asm.R2, asm.DWord))
	}
	p = append(p, loadToken(asm.R1)...)
	return append(p,
		asm.JNE.Reg(asm.R1, asm.R3, toWorker),
		asm.LoadMem(asm.R1, asm.R0, 8*entrySeen, asm.DWord), asm.JNE.Imm(asm.R1, 0, "seen"),
		asm.StoreImm(asm.R0, 8*entrySeen, 1, asm.Word),
		asm.Mov.Imm(asm.R1, 0).WithSymbol("seen"))
}

// findStage makes R0 the address of a megaflow in the map of stages: the one that tracks the frames of
// the connection (number 0), or the one that matches them afterwards (number 1). If the frame does not
// match this megaflow, the frame goes to the worker.
func (t *Table) findStage(number int16) asm.Instructions {
	p := asm.Instructions{
		asm.LoadMapPtr(asm.R1, t.stages.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(atSlots+4*number)),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, toWorker),
		asm.LoadMem(asm.R1, asm.R0, stageSerial, asm.DWord), asm.LoadMem(asm.R2, asm.RFP, atSerials+8*number, asm.DWord), asm.JNE.Reg(asm.R1, asm.R2, toWorker),
	}
	for i, w := range stageWords {
		p = append(p,
			asm.LoadMem(asm.R1, asm.RFP, int16(atKey+8*w), asm.DWord),
			asm.LoadMem(asm.R2, asm.R0, stageWant+8*int16(i), asm.DWord), asm.Xor.Reg(asm.R1, asm.R2),
			asm.LoadMem(asm.R2, asm.R0, stageMask+8*int16(i), asm.DWord), asm.And.Reg(asm.R1, asm.R2), asm.JNE.Imm(asm.R1, 0, toWorker))
	}
	return p
}

// translateKey writes the addresses and ports after NAT to the key on the stack. It also writes them to
// the verdict, from which the ingress program copies them to the frame. It does nothing for a connection
// without NAT.
func translateKey() asm.Instructions {
	p := asm.Instructions{
		asm.LoadMem(asm.R2, asm.RFP, atNewPorts, asm.DWord), asm.Mov.Reg(asm.R1, asm.R2), asm.RSh.Imm(asm.R1, 32), asm.JEq.Imm(asm.R1, 0, "as it is"),
		asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WL4, asm.DWord), asm.Mov.Reg32(asm.R1, asm.R1),
		asm.Mov.Reg(asm.R3, asm.R2), asm.LSh.Imm(asm.R3, 32), asm.Or.Reg(asm.R1, asm.R3), storeKey(flowtable.WL4, asm.R1),
		asm.HostTo(asm.BE, asm.R2, asm.Word),
		asm.LoadMem(asm.R4, asm.RFP, atKey+8*flowtable.WIP, asm.DWord), asm.RSh.Imm(asm.R4, flowtable.ProtoShift),
		asm.LoadMem(asm.R1, asm.RFP, atKey+8*flowtable.WEthDst, asm.DWord), asm.And.Imm(asm.R1, 0xffff), asm.JEq.Imm(asm.R1, packet.EtherTypeIPv6, "long"),
		asm.Mov.Imm(asm.R5, rewriteNAT),
	}
	for _, f := range []struct {
		word, words, checksum int16 // of the key; offset of UDP's checksum
	}{{flowtable.WIPv4, 1, udpChecksum}, {flowtable.WIPv6Src, 4, udpChecksumIPv6}} {
		if f.words > 1 {
			p = append(p, asm.Mov.Imm(asm.R5, rewriteNAT|rewriteIPv6).WithSymbol("long"))
		}
		for i := range f.words {
			p = append(p,
				asm.LoadMem(asm.R1, asm.RFP, atNew+8*i, asm.DWord), storeKey(f.word+i, asm.R1),
				asm.HostTo(asm.BE, asm.R1, asm.DWord), asm.StoreMem(asm.R8, verdictEnds+8*i, asm.R1, asm.DWord))
		}
		p = append(p,
			asm.StoreMem(asm.R8, verdictEnds+8*f.words, asm.R2, asm.Word),
			asm.Mov.Imm(asm.R2, int32(f.checksum)), asm.JEq.Imm(asm.R4, packet.ProtoUDP, "checksum"),
			asm.Mov.Imm(asm.R2, int32(f.checksum)+tcpChecksum-udpChecksum), asm.Ja.Label("checksum"))
	}
	return append(p,
		asm.StoreMem(asm.R8, verdictChecksum, asm.R2, asm.Word).WithSymbol("checksum"),
		asm.LoadMem(asm.R1, asm.RFP, atCE, asm.Half), asm.Or.Reg(asm.R1, asm.R5), asm.StoreMem(asm.RFP, atCE, asm.R1, asm.Half),
		asm.Mov.Imm(asm.R1, 0).WithSymbol("as it is"))
}

// Offsets in a frame of fields of IP datagrams without options and extension headers.
const (
	ipEnds          = ethernetLen + 12 // addresses and ports
	udpChecksum     = ethernetLen + packet.IPv4Len + 6
	tcpChecksum     = ethernetLen + packet.IPv4Len + 16
	ipv6Ends        = ethernetLen + 8
	udpChecksumIPv6 = ethernetLen + packet.IPv6Len + 6
)

// Flags of bpf_l4_csum_replace (include/uapi/linux/bpf.h).
const (
	pseudoHeader = 1 << 4 // BPF_F_PSEUDO_HDR: the change is in the pseudo header, all that an unfinished checksum covers
	mangledZero  = 1 << 5 // BPF_F_MARK_MANGLED_0: for UDP, where the checksum 0 means none (RFC 768)
	pseudoIPv6   = 1 << 7 // BPF_F_IPV6: beside BPF_F_PSEUDO_HDR, no checksum of the IP header covers the change; since Linux 6.16
)

// translate returns the part of the ingress program for NAT. It writes the addresses and ports in the
// verdict to the frame, and corrects the checksums.
func translate() asm.Instructions {
	return slices.Concat(
		asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R9).WithSymbol("translate"), asm.And.Imm(asm.R1, rewriteNAT), asm.JEq.Imm(asm.R1, 0, "destination"),
			asm.Mov.Reg(asm.R1, asm.R9), asm.And.Imm(asm.R1, rewriteIPv6), asm.JNE.Imm(asm.R1, 0, "translate IPv6")},
		translateFamily(false), asm.Instructions{
			asm.Ja.Label("destination"),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("translate IPv6")},
		translateFamily(true))
}

// translateFamily returns the part of translate for IPv6 or for IPv4. Kernels before Linux 6.16 refuse
// the flag pseudoIPv6. If such a kernel has a complete checksum from the device (CHECKSUM_COMPLETE),
// this checksum becomes wrong, and the receiver calculates it again.
func translateFamily(ipv6 bool) asm.Instructions {
	const ends, sum = -40, -48
	offset, addresses, udp, header, family := int32(ipEnds), int32(8), int32(udpChecksum), int32(pseudoHeader), ""
	if ipv6 {
		offset, addresses, udp, header, family = ipv6Ends, 32, udpChecksumIPv6, pseudoHeader|pseudoIPv6, " of IPv6"
	}
	difference := func(first, length int32) asm.Instructions {
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, ends+first), asm.Mov.Imm(asm.R2, length),
			asm.Mov.Reg(asm.R3, asm.R8), asm.Add.Imm(asm.R3, verdictEnds+first), asm.Mov.Imm(asm.R4, length), asm.Mov.Imm(asm.R5, 0),
			asm.FnCsumDiff.Call(), asm.StoreMem(asm.RFP, sum, asm.R0, asm.DWord)}
	}
	transport := func(flags int32, label string) asm.Instructions {
		label += family
		return asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMem(asm.R2, asm.R8, verdictChecksum, asm.Word), asm.Mov.Imm(asm.R3, 0),
			asm.LoadMem(asm.R4, asm.RFP, sum, asm.DWord), asm.Mov.Imm(asm.R5, flags),
			asm.JNE.Imm(asm.R2, udp, label), asm.Or.Imm(asm.R5, mangledZero),
			asm.FnL4CsumReplace.Call().WithSymbol(label)}
	}
	p := slices.Concat(
		asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, offset), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, ends), asm.Mov.Imm(asm.R4, addresses+4),
			asm.FnSkbLoadBytes.Call(), asm.JNE.Imm(asm.R0, 0, drop)},
		difference(0, addresses))
	if !ipv6 {
		p = append(p,
			asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, ipChecksum), asm.Mov.Imm(asm.R3, 0), asm.Mov.Reg(asm.R4, asm.R0), asm.Mov.Imm(asm.R5, 0),
			asm.FnL3CsumReplace.Call(), asm.JNE.Imm(asm.R0, 0, drop))
	}
	p = append(p, transport(header, "addresses")...)
	if ipv6 {
		p = append(p, asm.JEq.Imm(asm.R0, 0, "header"))
		p = append(p, transport(pseudoHeader, "earlier kernels")...)
	}
	p = append(p, asm.JNE.Imm(asm.R0, 0, drop))
	rest := difference(addresses, 4)
	if ipv6 {
		rest[0] = rest[0].WithSymbol("header")
	}
	return slices.Concat(p, rest, transport(0, "ports"), asm.Instructions{
		asm.JNE.Imm(asm.R0, 0, drop),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, offset), asm.Mov.Reg(asm.R3, asm.R8), asm.Add.Imm(asm.R3, verdictEnds),
		asm.Mov.Imm(asm.R4, addresses+4), asm.Mov.Imm(asm.R5, 0),
		asm.FnSkbStoreBytes.Call(), asm.JNE.Imm(asm.R0, 0, drop)})
}
