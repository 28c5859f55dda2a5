// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"

	"weft/bfd"
	"weft/flowtable"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

// This file runs the sessions of bidirectional forwarding detection (BFD, RFC 5880) with the remote ends of
// tunnels. The sessions run in the workers, so that they show whether the data path works. They continue
// while no control process runs. If the worker hangs, the remote end detects that. The one worker whose
// Config.Sweeps is set sends the periodic packets. Any worker receives packets and answers them.

const (
	// MaxBFD is the largest number of sessions of an engine process. The control process starts no further ones.
	MaxBFD = 1 << bfdIndexBits
	// bfdIndexBits is the number of bits of a session's index in BFDTable.
	bfdIndexBits = 10
	// bfdTickNS and bfdIdleNS are the shortest and the longest time in nanoseconds from
	// one call of runBFD to the next.
	bfdTickNS = 10_000_000
	bfdIdleNS = 100_000_000
	// bfdLateNS is a delay in nanoseconds. If the call of runBFD is late by at least this time, the worker
	// counts as stalled. A stalled worker has received no packets, so it extends all detection times by the
	// delay. Otherwise the stall would end sessions whose remote ends are alive.
	bfdLateNS = 50_000_000
	// bfdCostNS and bfdBurst limit the received packets of a session to 100 a second, and to 20 at once. There
	// is one such limit for packets with the session's discriminator, and another for packets with discriminator
	// 0. So forged packets with discriminator 0 do not displace packets of the true remote. Packets beyond the
	// limit are dropped as DropBadBFD. A remote sends at most 20 packets a second, because the control process
	// configures no interval below 50 ms.
	bfdCostNS = 10_000_000
	bfdBurst  = 20
	// bfdGuardNS is the time in nanoseconds for which a session is guarded. This time begins when more packets
	// with wrong discriminators arrive than the limit of bfdCostNS allows, because then somebody guesses the
	// discriminator. A session that is up and guarded does not believe a packet with new contents until the next
	// packet with the right discriminator repeats these contents. A single forged packet with the right
	// discriminator thus has no effect, because the next packet of the true remote differs from it. A remote
	// that really ends the session repeats its packet, or falls silent.
	bfdGuardNS = 10_000_000_000
)

// BFDSession is one session, in memory that the engine process shares with the control process. The workers
// write it. The control process reads it, and copies it to the memory of the next engine process.
type BFDSession struct {
	bfd.Session
	Port     uint32   // datapath port of the tunnel; 0: unused
	Template uint32   // tunnel template to the remote
	VNI      uint32   // VNI of sent packets
	OneHop   uint32   // 1: outer headers of received packets must have TTL 255 (RFC 5082)
	Remote   [16]byte // address of the remote: IPv6, or IPv4 mapped into IPv6
	// Received counts accepted packets. Sent counts sent packets. Refused counts received packets that did
	// not belong to the session or exceeded its rate. Four counters count parts of Refused:
	//   - Guessed: packets with a wrong discriminator
	//   - Distant: packets whose TTL shows that they came through routers, although OneHop is 1
	//   - Unauthentic: packets without the session's authentication
	//   - Doubtful: packets with new contents, received while the session was guarded (bfdGuardNS), that
	//     repeated no earlier packet
	Received, Sent, Refused                 uint64
	Guessed, Distant, Unauthentic, Doubtful uint64
	// dueNS is the state of three token buckets, as in port.TakeToken. They limit packets with discriminator 0,
	// with the right one, and with a wrong one.
	dueNS     [3]uint64
	guardedNS uint64     // time until which the session is guarded
	heard     bfd.Packet // last packet that the session accepted
	claim     bfd.Packet // last doubtful packet since then
}

// BFDTable has the BFD sessions of an engine process. All its workers share the table.
type BFDTable struct {
	lock     TxLock       // guards the table and the sessions
	sessions []BFDSession // length MaxBFD
	stale    bool         // used and slots do not reflect the latest commands yet
	used     int          // 1 + the highest index in use
	running  [MaxBFD]bool // this engine runs the session
	// slots is a hash table from a tunnel's port and remote to 1 + the session's index; 0: free. It uses
	// open addressing and is at most half full.
	slots [2 * MaxBFD]uint16
}

// NewBFDTable returns a table over shared memory of MaxBFD sessions. A session in this memory runs only after
// a CmdBFD for it.
func NewBFDTable(sessions []BFDSession) *BFDTable { return &BFDTable{sessions: sessions} }

func bfdHash(port uint32, remote *[16]byte) uint32 {
	h := (binary.BigEndian.Uint64(remote[:]) ^ binary.BigEndian.Uint64(remote[8:]) ^ uint64(port)<<40) * 0x9e3779b97f4a7c15
	return uint32(h >> (64 - bfdIndexBits - 1))
}

// update computes the fields used and slots from the running sessions, if commands have changed a session
// since the last update. Many commands in a row thus cost one update. The caller holds the lock.
func (t *BFDTable) update() {
	if !t.stale {
		return
	}
	clear(t.slots[:])
	t.stale, t.used = false, 0
	for i := range t.sessions {
		s := &t.sessions[i]
		if !t.running[i] {
			continue
		}
		t.used = i + 1
		pos := bfdHash(s.Port, &s.Remote)
		for t.slots[pos] != 0 {
			pos = (pos + 1) % uint32(len(t.slots))
		}
		t.slots[pos] = uint16(i + 1)
	}
}

// find returns the running session of a tunnel's port with a remote, or nil. The caller holds the lock.
func (t *BFDTable) find(port uint32, remote *[16]byte) *BFDSession {
	t.update()
	for pos := bfdHash(port, remote); t.slots[pos] != 0; pos = (pos + 1) % uint32(len(t.slots)) {
		if s := &t.sessions[(t.slots[pos]-1)%MaxBFD]; s.Port == port && s.Remote == *remote {
			return s
		}
	}
	return nil
}

// BFDSet is the body of a CmdBFD: a session and its configuration.
type BFDSet struct {
	Port, Template, VNI uint32 // as in BFDSession; Port 0 ends the session
	Remote              [16]byte
	Config              bfd.Config
	OneHop              bool
	// Discriminator is a random number. A new session uses it as its own discriminator, or the next number that
	// is free.
	Discriminator uint32
}

const (
	bfdSetWords = 8
	bfdSetBytes = bfdSetWords*4 + 16 + bfd.KeyLength
)

// AppendBFD appends an encoded CmdBFD for the session with this index, which is below MaxBFD.
func AppendBFD(buf []byte, index uint32, s *BFDSet) []byte {
	buf = appendHeader(buf, uint32(CmdBFD), index)
	protection := uint32(s.Config.Auth.Type) | uint32(s.Config.Auth.KeyID)<<8
	if s.OneHop {
		protection |= 1 << 16
	}
	for _, v := range [bfdSetWords]uint32{s.Port, s.Template, s.VNI, s.Config.MinTx, s.Config.MinRx, uint32(s.Config.Multiplier), s.Discriminator, protection} {
		buf = binary.LittleEndian.AppendUint32(buf, v)
	}
	return append(append(buf, s.Remote[:]...), s.Config.Auth.Key[:]...)
}

// setBFD executes CmdBFD. If the index already has a session of this port and remote, the session
// continues with the new configuration. setBFD returns false for an invalid command.
func (w *Worker) setBFD(index uint32, body []byte) bool {
	if index >= MaxBFD || len(body) != bfdSetBytes {
		return false
	}
	u32 := func(i int) uint32 { return binary.LittleEndian.Uint32(body[4*i:]) }
	number, remote := u32(0), [16]byte(body[4*bfdSetWords:])
	auth := bfd.Auth{Type: bfd.AuthType(u32(7)), KeyID: uint8(u32(7) >> 8), Key: [bfd.KeyLength]byte(body[4*bfdSetWords+16:])}
	c := bfd.Config{MinTx: u32(3), MinRx: u32(4), Multiplier: uint8(u32(5)), Auth: auth}
	if number >= port.MaxPorts || number != 0 && (c.MinTx == 0 || c.MinRx == 0 || c.Multiplier == 0) {
		return false
	}
	t := w.config.BFD
	t.lock.lock()
	var last bfdFrame
	s := &t.sessions[index]
	switch {
	case number == 0:
		if t.running[index] && s.Theirs != 0 {
			s.Disable(w.now)
			last = s.frame(s.Packet())
		}
		*s = BFDSession{}
	case s.Port == number && s.Remote == remote:
		s.Configure(c)
		if !t.running[index] { // an earlier engine ran the session
			s.Resume(w.now)
		}
	default:
		*s = BFDSession{Port: number, Remote: remote}
		s.Begin(c, t.discriminator(u32(6)), w.now)
	}
	s.Template, s.VNI, s.OneHop = u32(1), u32(2), u32(7)>>16&1
	t.running[index], t.stale = number != 0, true
	t.lock.unlock()
	w.bfdDue = min(w.bfdDue, w.now) // runBFD finds a stall by an earlier time, so it stays
	if last.port != 0 && !w.holding {
		w.sendBFD(&last)
		w.finish()
	}
	return true
}

// The method discriminator returns a discriminator that no other session has, and that is not 0: the argument
// "random", or the next free number. All 32 bits are random, because whoever guesses them can end the
// session. The caller holds the lock.
func (t *BFDTable) discriminator(random uint32) uint32 {
	for taken := true; taken; random++ {
		taken = random == 0
		for i := range t.sessions {
			taken = taken || t.sessions[i].Mine == random
		}
	}
	return random - 1
}

// bfdFrame is an encoded packet and its destination, which the worker sends after it has released the
// table's lock. mine is the session's own discriminator.
type bfdFrame struct {
	packet                    [bfd.MaxLength]byte
	length                    int
	port, template, vni, mine uint32
}

// The method frame encodes a packet that the session sends, and counts it as sent. The caller holds the lock.
func (s *BFDSession) frame(p bfd.Packet) (f bfdFrame) {
	s.Sent++
	f.length = s.Encode(&f.packet, p)
	f.port, f.template, f.vni, f.mine = s.Port, s.Template, s.VNI, p.Mine
	return f
}

// runBFD sends the periodic packets that are due. It sets sessions to down whose remote has been silent for
// the detection time. It also sets the time of its next call.
func (w *Worker) runBFD() {
	if w.holding {
		return // the receive queues are stopped, which counts as a stall
	}
	late := w.now - w.bfdDue
	if late < bfdLateNS {
		late = 0
	}
	t := w.config.BFD
	t.lock.lock()
	t.update()
	used := t.used
	t.lock.unlock()
	if used == 0 {
		w.bfdDue = ^uint64(0)
		return
	}
	next := w.now + bfdIdleNS
	for i := range used {
		var f bfdFrame
		t.lock.lock()
		s := &t.sessions[i]
		send := false
		if t.running[i] { // false for a session of an earlier engine until its CmdBFD
			s.Postpone(late)
			if send = s.Tick(w.now); send {
				f = s.frame(s.Packet())
			}
			next = min(next, s.NextNS())
		}
		t.lock.unlock()
		if send {
			w.sendBFD(&f)
		}
	}
	w.bfdDue = max(next, w.now+bfdTickNS)
	w.finish()
}

// receiveBFD handles a decapsulated frame to the MAC address tunnel.BFDAddress. It returns packet.Consumed if
// a session has accepted the packet, otherwise the drop reason.
func (w *Worker) receiveBFD(f *packet.Frame, words *[flowtable.TunnelWords]uint64) packet.DropReason {
	payload := bfdPayload(&w.batch, f)
	p, ok := bfd.Parse(payload)
	if !ok {
		return packet.DropBadBFD
	}
	remote, ttl := remoteOf(words), uint8(words[0]>>tunnel.OuterTTLShift)
	t := w.config.BFD
	t.lock.lock()
	s := t.find(f.InPort, &remote)
	accepted, answer := false, false
	var out bfdFrame
	if s != nil {
		if s.believes(&p, payload, ttl, w.now) {
			accepted, answer = s.Receive(&p, w.now)
		}
		if accepted {
			s.Received++
			s.heard, s.claim = p, bfd.Packet{}
		} else {
			s.Refused++
		}
		if answer {
			out = s.frame(s.Answer(&p))
		}
	}
	t.lock.unlock()
	switch {
	case !accepted:
		return packet.DropBadBFD
	case answer:
		w.sendBFD(&out)
	}
	return packet.Consumed
}

// Token buckets of a session; indexes of BFDSession.dueNS.
const (
	bfdGreetings = iota
	bfdKnown
	bfdGuesses
)

// believes reports whether the session accepts packet p. payload is the encoded packet, and ttl the TTL of
// its outer header. It counts a refused packet in the counter of the reason, unless the packet only exceeded
// the rate.
func (s *BFDSession) believes(p *bfd.Packet, payload []byte, ttl uint8, now uint64) bool {
	bucket := bfdKnown
	switch {
	case s.OneHop != 0 && ttl != bfdTTL:
		s.Distant++
		return false
	case p.Yours == 0:
		bucket = bfdGreetings
	case p.Yours != s.Mine:
		s.Guessed++
		if !s.admit(bfdGuesses, now) {
			s.guardedNS = now + bfdGuardNS
		}
		return false
	}
	if !s.admit(bucket, now) {
		return false
	}
	if !s.Authentic(payload, now) {
		s.Unauthentic++
		return false
	}
	if now >= s.guardedNS || s.State != bfd.Up || p.Yours == 0 && p.Mine != s.Theirs || p.Repeats(s.heard) || p.Repeats(s.claim) {
		return true
	}
	s.claim = *p
	s.Doubtful++
	return false
}

// admit takes a token from one of the session's buckets. It returns false if the bucket is empty.
func (s *BFDSession) admit(bucket int, now uint64) bool {
	due := &s.dueNS[bucket]
	next := max(*due, now) + bfdCostNS
	if next > now+bfdBurst*bfdCostNS {
		return false
	}
	*due = next
	return true
}

// remoteOf returns the outer source address of a frame in the format of BFDSession.Remote. words are those
// words of the frame's key that describe the tunnel.
func remoteOf(words *[flowtable.TunnelWords]uint64) (remote [16]byte) {
	if words[2]|words[3] != 0 {
		binary.BigEndian.PutUint64(remote[:], words[2])
		binary.BigEndian.PutUint64(remote[8:], words[3])
		return remote
	}
	binary.BigEndian.PutUint64(remote[8:], 0xffff<<32|words[1]>>32)
	return remote
}

// Headers of BFD packets in a tunnel, as in Open vSwitch (lib/bfd.c). Both ends of a tunnel
// send from bfdSource to bfdTarget.
const (
	bfdHeaders    = packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	bfdSource     = 169<<24 | 254<<16 | 1<<8 | 1
	bfdTarget     = 169<<24 | 254<<16 | 1<<8
	bfdPort       = 3784 // RFC 5881 section 4
	bfdSourcePort = 49152
	bfdTTL        = 255 // RFC 5881 section 5
)

// bfdPayload returns the UDP payload of the BFD packet in a decapsulated frame. The result is nil if the
// frame has no well-formed BFD packet. bfdPayload accepts any IP addresses.
func bfdPayload(b *packet.Batch, f *packet.Frame) []byte {
	if f.Len() < bfdHeaders+bfd.Length || !b.Pullup(f, min(f.Len(), bfdHeaders+bfd.MaxLength)) {
		return nil
	}
	h := f.Header()
	ip, udp := packet.IPv4(h[packet.EthernetLen:][:packet.IPv4Len]), packet.UDP(h[packet.EthernetLen+packet.IPv4Len:bfdHeaders])
	n := udp.Len()
	switch {
	case packet.Ethernet(h).Type() != packet.EtherTypeIPv4, ip[0] != 0x45, ip[8] != bfdTTL, ip.Proto() != packet.ProtoUDP,
		ip.FlagsFrag()&0x3fff != 0, packet.Sum(ip) != 0xffff, udp.DstPort() != bfdPort, n < packet.UDPLen, ip.TotalLen() != packet.IPv4Len+n,
		bfdHeaders-packet.UDPLen+n > len(h):
		return nil
	}
	datagram := h[packet.EthernetLen+packet.IPv4Len:][:n]
	pseudo := packet.SumIPv4(binary.BigEndian.Uint32(ip[12:]), binary.BigEndian.Uint32(ip[16:]), packet.ProtoUDP, n)
	if udp.Checksum() != 0 && packet.AddSums(pseudo, packet.Sum(datagram)) != 0xffff {
		return nil
	}
	return datagram[packet.UDPLen:]
}

// sendBFD sends a packet to its remote. It sends nothing if the tunnel has no route, or if the MAC address of
// the next hop is unknown. Other frames of the tunnel do not reach the remote then, either.
func (w *Worker) sendBFD(out *bfdFrame) {
	if out.template >= uint32(len(w.sh.Templates)) {
		return
	}
	t := &w.sh.Templates[out.template]
	hash := out.mine * 0x9e3779b1 // constant for a session, so that all its packets take the same next hop
	if t.State == tunnel.TemplateSpread {
		next := t.NextHop(hash)
		if next >= uint32(len(w.sh.Templates)) {
			return
		}
		t = &w.sh.Templates[next]
	}
	p := &w.ports[t.Port%port.MaxPorts]
	if t.State != tunnel.TemplateReady || p.tx == nil {
		return
	}
	b := &w.segments
	b.Reset()
	f, h := b.Next()
	writeBFD(h[:], t, out)
	b.Commit(f, bfdHeaders+out.length)
	f.L3, f.L4 = packet.EthernetLen, packet.EthernetLen+packet.IPv4Len
	if t.Push(f, out.vni, hash, internetControl, &bfdFields) != packet.DropNone {
		return
	}
	t.SetOuterTTL(f, bfdTTL) // so that the remote can tell a neighbour from a distant forger
	w.touch(p)
	w.useTx(p, 0)
	w.sendCut(p, overlay{port: uint16(out.port % port.MaxPorts), outer: t.Len}, false)
	w.leaveTx()
}

// bfdFields marks BFD packets in Geneve as control packets (the O bit, RFC 8926 section 3.4), as Open
// vSwitch does.
var bfdFields = tunnel.Fields{Meta: flowtable.TunOAM << flowtable.TunFlagsShift}

// writeBFD writes the inner frame of a BFD packet to h: bfdHeaders+out.length bytes. Its source MAC
// address is the uplink's, from template t.
func writeBFD(h []byte, t *tunnel.Template, out *bfdFrame) {
	packet.Ethernet(h).SetDst(tunnel.BFDAddress)
	copy(h[6:12], t.Header[6:12])
	packet.Ethernet(h).SetType(packet.EtherTypeIPv4)
	ip := packet.IPv4(h[packet.EthernetLen:][:packet.IPv4Len])
	clear(ip)
	ip[0], ip[1], ip[8], ip[9] = 0x45, internetControl, bfdTTL, packet.ProtoUDP
	ip.SetTotalLen(packet.IPv4Len + packet.UDPLen + out.length)
	ip.SetFlagsFrag(0x4000)
	binary.BigEndian.PutUint32(ip[12:], bfdSource)
	binary.BigEndian.PutUint32(ip[16:], bfdTarget)
	ip.SetChecksum(packet.Checksum(ip))
	udp := packet.UDP(h[packet.EthernetLen+packet.IPv4Len : bfdHeaders])
	clear(udp)
	udp.SetSrcPort(bfdSourcePort + uint16(out.mine%MaxBFD))
	binary.BigEndian.PutUint16(udp[2:], bfdPort)
	udp.SetLen(packet.UDPLen + out.length)
	copy(h[bfdHeaders:], out.packet[:out.length])
}
