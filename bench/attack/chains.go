// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost/vhosttest"
)

// This file has attacks of a guest that offers long chains of valid descriptors.

func chainAttacks() []*attack {
	return []*attack{
		{name: "long-chains", attacker: "front end", summary: "frames of 1,000 descriptors of a byte each, as many as a chain may have almost",
			setup: echoPort(), play: attached(vhosttest.Options{Num: 32768, BufLen: 64}, longChains)},
		{name: "long-receive-chains", attacker: "front end", summary: "receive buffers of descriptors of a byte",
			setup: echoPort(), play: attached(vhosttest.Options{Num: 32768, BufLen: 64}, longReceiveChains)},
		{name: "call-storm", attacker: "guest", summary: "wants a call for every frame and never looks at them",
			setup: sender(echoes, vhosttest.Options{Num: 1024, Interrupts: true}), play: flood(func(p *play, f []byte) []byte { return f[:64] })},
		{name: "call-waiters", attacker: "front end", summary: "has 4,000 epolls wait for its call eventfd",
			setup: waitersSetup, play: flood(func(p *play, f []byte) []byte { return f[:64] })},
	}
}

// chainPieces is the length of the chains in descriptors. The switch refuses chains of more than 1,024.
const chainPieces = 1000

// bytewise writes an indirect descriptor table into the first buffer of the queue. The table has n
// descriptors of one byte each, beginning at the guest address "data". bytewise returns a descriptor
// that refers to the table.
func (g *guest) bytewise(q *vhosttest.Queue, n int, data uint64, flags uint16) vhosttest.Desc {
	at := q.SlotAddr(0) &^ 15
	table, ok := g.Bytes(at, uint64(16*n))
	if !ok {
		panic("the table is not in guest memory")
	}
	for i := range n {
		d := table[16*i:]
		binary.LittleEndian.PutUint64(d, data+uint64(i%4096))
		binary.LittleEndian.PutUint32(d[8:], 1)
		f := flags
		if i < n-1 {
			f |= vhosttest.Next
		}
		binary.LittleEndian.PutUint16(d[12:], f)
		binary.LittleEndian.PutUint16(d[14:], uint16(i+1))
	}
	return vhosttest.Desc{Addr: at, Len: uint32(16 * n), Flags: vhosttest.Indirect}
}

// offerAll writes the descriptor d into all entries of the queue's descriptor table. It then offers all
// entries to the switch again and again, until the attack ends.
func (g *guest) offerAll(q *vhosttest.Queue, d vhosttest.Desc) {
	for i := range q.Descs {
		q.Descs[i] = d
	}
	batch := 64
	for n := 0; !g.play.expired(); {
		for range batch {
			q.Offer(uint16(n % g.Num))
			n++
		}
		q.Publish()
		g.drain()
		for used := 0; used < batch && !g.play.expired(); {
			used += q.Reclaim()
			g.drain()
			time.Sleep(20 * time.Microsecond)
		}
	}
}

func longChains(g *guest) error {
	d := g.bytewise(g.Tx[0], chainPieces, g.Rx[0].SlotAddr(0), 0)
	g.offerAll(g.Tx[0], d)
	return nil
}

// longReceiveChains offers receive chains of one-byte buffers, so that the switch fills many descriptors
// for each frame.
func longReceiveChains(g *guest) error {
	g.Rx[0].Withdraw()
	d := g.bytewise(g.Rx[0], chainPieces, g.Tx[0].SlotAddr(0), vhosttest.Write)
	for i := range g.Rx[0].Descs {
		g.Rx[0].Descs[i] = d
	}
	for i := range 4096 {
		g.Rx[0].Offer(uint16(i))
	}
	g.Rx[0].Publish()
	for !g.play.expired() {
		for range 64 {
			g.Tx[0].Send(make([]byte, 50))
		}
		g.Tx[0].Publish()
		g.Tx[0].Reclaim()
		time.Sleep(100 * time.Microsecond)
		for i := range g.Rx[0].Reclaim() {
			g.Rx[0].Offer(uint16(i))
		}
		g.Rx[0].Publish()
	}
	return nil
}

// waitersSetup makes up to 4,000 epoll instances watch the guest's call eventfd. Each notification by
// the switch must then wake all of them.
func waitersSetup(p *play) error {
	if err := sender(echoes, vhosttest.Options{Num: 1024, Interrupts: true})(p); err != nil {
		return err
	}
	g := p.own("guest")
	for range 4000 {
		set, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			break
		}
		p.later(func() { unix.Close(set) })
		if err := unix.EpollCtl(set, unix.EPOLL_CTL_ADD, g.Rx[0].CallFD(), &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
			return err
		}
	}
	return nil
}
