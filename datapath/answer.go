// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

// This file answers an ARP request (RFC 826) or a neighbour solicitation (RFC 4861 section 7.2.4) in
// place of the host that owns the address. It reads the request from the frame's key, which describes
// the frame as it was received.

const (
	arpLen    = 28
	arpReply  = 2
	advertLen = 24 + 8 // length of an advertisement with the target link-layer address option
	ndAdvert  = 136
	// ndFlags are the flags Solicited and Override of a neighbour advertisement. The flag Router stays 0,
	// because the control process lets the switch answer only for addresses of hosts, not for those of routers.
	ndFlags     = 0x60
	ndHopLimit  = 255
	ndTargetMAC = 2 // option type of the target link-layer address
)

// answerNeighbour answers the ARP request or neighbour solicitation in frame i, through the port that has
// received it. The low 48 bits of mac are the MAC address of the host that owns the requested address.
func (w *Worker) answerNeighbour(i int, mac uint64) {
	f, k := &w.batch.Frames[i], &w.keys[i]
	p := &w.ports[f.InPort%uint32(len(w.ports))]
	if p.tx == nil {
		w.drop(f, packet.DropNotAttached)
		return
	}
	b := &w.segments
	b.Reset()
	a, h := b.Next()
	n := 0
	switch k.EtherType() {
	case packet.EtherTypeARP:
		n = writeARPReply(h, k, mac)
	case packet.EtherTypeIPv6:
		n = writeAdvert(h, k, mac)
	default:
		w.drop(f, packet.DropFlow) // control installs no such action
		return
	}
	b.Commit(a, n)
	w.sendAnswer(p)
}

// sendAnswer sends the answer frame in w.segments to port p.
func (w *Worker) sendAnswer(p *txPort) {
	w.touch(p)
	w.useTx(p, 0)
	w.sendCut(p, overlay{}, false)
	w.leaveTx()
}

// writeLink writes the Ethernet header and the VLAN tags of an answer, and returns their length in bytes. mac
// is the answer's source address. Its destination address and its tags come from k, the key of the received
// request.
func writeLink(h []byte, k *flowtable.Key, mac uint64) int {
	packet.Ethernet(h).SetDst(k.EthSrc())
	packet.Ethernet(h).SetSrc(mac)
	at := writeTags(h[12:], k.OuterTCI(), k.InnerTCI()) + 12
	binary.BigEndian.PutUint16(h[at:], k.EtherType())
	return at + 2
}

func writeARPReply(h *[packet.MaxHeader]byte, k *flowtable.Key, mac uint64) int {
	at := writeLink(h[:], k, mac)
	arp := h[at : at+arpLen]
	copy(arp, []byte{0, 1, 8, 0, 6, 4, 0, arpReply}) // ARP header: hardware Ethernet, protocol IPv4, opcode reply
	asker, asked := k.IPv4Src(), k.IPv4Dst()
	binary.BigEndian.PutUint64(arp[8:], mac<<16) // 6 bytes of MAC address; the IP address overwrites the other 2
	binary.BigEndian.PutUint32(arp[14:], asked)
	binary.BigEndian.PutUint64(arp[18:], k[flowtable.WARPSha]&^0xffff)
	binary.BigEndian.PutUint32(arp[24:], asker)
	return at + arpLen
}

func writeAdvert(h *[packet.MaxHeader]byte, k *flowtable.Key, mac uint64) int {
	at := writeLink(h[:], k, mac)
	ip := packet.IPv6(h[at : at+packet.IPv6Len])
	clear(ip)
	ip[0] = 0x60
	ip.SetPayloadLen(advertLen)
	ip[6], ip[7] = packet.ProtoICMPv6, ndHopLimit
	putAddresses(ip[8:], k[flowtable.WNDTarget:], k[flowtable.WIPv6Src:])
	nd := h[at+packet.IPv6Len : at+packet.IPv6Len+advertLen]
	clear(nd)
	nd[0], nd[4] = ndAdvert, ndFlags
	copy(nd[8:24], ip[8:24])
	binary.BigEndian.PutUint64(nd[24:], ndTargetMAC<<56|1<<48|mac)
	pseudo := packet.SumIPv6(ip[8:24], ip[24:40], packet.ProtoICMPv6, advertLen)
	binary.BigEndian.PutUint16(nd[2:], ^packet.AddSums(pseudo, packet.Sum(nd)))
	return at + packet.IPv6Len + advertLen
}
