// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// This file has attacks in which frames between an attacker and a chosen victim lie in a file of
// gigabytes that the attacker punches, while its rings and its headers lie in sound memory. So the
// worker hangs while it copies from one memory to the other, and only the attacker's port may pay.

func holeAttacks() []*attack {
	return []*attack{
		{name: "payload-punched", exclusive: true, kills: true, pause: hungPause, attacker: "front end",
			summary: "sends to a victim from a file of gigabytes that it punches, headers in sound memory",
			setup:   counting(victimSetup), play: punchPayload, check: victimStays},
		{name: "receive-buffers-punched", exclusive: true, kills: true, pause: hungPause, attacker: "front end",
			summary: "lets a victim send into a file of gigabytes that it punches",
			setup:   counting(victimSetup), play: punchBuffers, check: victimStays},
	}
}

const (
	holeBase = 1 << 40 // guest address of the file
	// holePart is the part of the file that the switch maps.
	holePart    = 1 << 20
	holeBuffer  = 4096
	victimName  = "victim"
	holeRequest = 16 // frames of a batch
)

// victimSetup adds the attacker's port and the victim's, and attaches the victim. What one of them sends
// goes to the other.
func victimSetup(p *play) error {
	victim := p.name + "-" + victimName
	socket, err := p.port("-"+victimName, "")
	if err != nil {
		return err
	}
	if _, err := p.port("", "actions=output:"+victim); err != nil {
		return err
	}
	if err := p.flow("priority=50,in_port=" + victim + ",actions=output:" + p.name); err != nil {
		return err
	}
	g, err := p.guest(socket, vhosttest.Options{Num: 256})
	if err != nil {
		return err
	}
	p.vars[victimName] = g
	p.later(g.close)
	return p.up(victim)
}

// hole is a guest of the attacker with a second memory region, the file that it punches.
type hole struct {
	*guest
	fd   int
	size int64
}

// withHole attaches an attacker with a file of gigabytes as its second memory region. offer writes the
// descriptors of the queues before they start. While the switch refuses the port after a hang, withHole does
// not call do.
func withHole(p *play, offer func(g *vhosttest.Guest), do func(h *hole) error) error {
	err := p.negotiated(func(g *vhosttest.Guest, f *vhosttest.FrontEnd) error {
		fd, err := unix.MemfdCreate("hole", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		h := &hole{guest: &guest{Guest: g, front: f, play: p}, fd: fd, size: max(min(int64(punchedBytes), machineFree()/4), holePart)}
		if err := unix.Ftruncate(fd, h.size); err != nil {
			return err
		}
		region := vhost.RegionSpec{GuestAddr: holeBase, UserAddr: holeBase, Size: holePart}
		if err := ask(f, vhosttest.SetMemTable, table(g.Regions()[0], region), g.FD(), fd); err != nil {
			return ignoreClosed(err)
		}
		offer(g)
		if err := f.StartQueues(g, (*vhosttest.Queue).Start); err != nil {
			return ignoreClosed(err)
		}
		return do(h)
	})
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		err = nil // the switch refuses the port at present
	}
	time.Sleep(20 * time.Millisecond)
	return err
}

// punch fills the file and punches it as a whole. It calls traffic all the time until the hole is there.
func (h *hole) punch(traffic func()) error {
	if err := unix.Fallocate(h.fd, 0, 0, h.size); err != nil {
		return err
	}
	for range 20 { // the switch maps the pages
		traffic()
		time.Sleep(time.Millisecond)
	}
	punched := make(chan error, 1)
	go func() { punched <- unix.Fallocate(h.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, h.size) }()
	for {
		select {
		case err := <-punched:
			return err
		default:
			traffic()
			time.Sleep(time.Millisecond)
		}
	}
}

// answered waits until the API answers, so that the engine does not hang or is replaced.
func (p *play) answered() (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = p.site.client.Show(); err == nil {
			break
		}
	}
	return err
}

// punchPayload sends frames of two pieces to the victim: headers in sound memory, and payload in the hole.
func punchPayload(p *play) error {
	victim := p.own(victimName)
	return withHole(p, func(*vhosttest.Guest) {}, func(h *hole) error {
		tx := h.Tx[0]
		copy(tx.Slot(0)[12:], ether(nobodysMAC, attackerMAC, 0x88b5, 200))
		next := 0
		err := h.punch(func() {
			for range holeRequest {
				head := 2 * (next % (h.Num / 2))
				tx.Descs[head] = vhosttest.Desc{Addr: tx.SlotAddr(0), Len: 212, Flags: vhosttest.Next, Next: uint16(head + 1)}
				tx.Descs[head+1] = vhosttest.Desc{Addr: holeBase + uint64(next)*holeBuffer%holePart, Len: 1000}
				if tx.Offer(uint16(head)); tx.AvailIndex()-tx.UsedIndex() >= uint16(h.Num/2) {
					break
				}
				next++
			}
			tx.Publish()
			victim.flush()
		})
		if err != nil {
			return err
		}
		return p.answered()
	})
}

// punchBuffers receives the victim's frames in the hole.
func punchBuffers(p *play) error {
	victim := p.own(victimName)
	return withHole(p, func(g *vhosttest.Guest) {
		rx := g.Rx[0]
		rx.Withdraw()
		for i := range g.Num {
			rx.Descs[i] = vhosttest.Desc{Addr: holeBase + uint64(i)*holeBuffer%holePart, Len: holeBuffer, Flags: vhosttest.Write}
			rx.Offer(uint16(i))
		}
		rx.Publish()
	}, func(h *hole) error {
		rx, offered := h.Rx[0], uint16(h.Num)
		err := h.punch(func() {
			for range holeRequest {
				victim.Tx[0].Send(ether(nobodysMAC, attackerMAC, 0x88b5, 1400))
			}
			victim.Tx[0].Publish()
			victim.Tx[0].Reclaim()
			for used := rx.UsedIndex(); used+uint16(h.Num) != offered; offered++ {
				rx.Offer(offered % uint16(h.Num))
			}
			rx.Publish()
		})
		if err != nil {
			return err
		}
		return p.answered()
	})
}

// victimStays fails if the switch has put the victim out, even once, or did not put the attacker out for
// good.
func victimStays(p *play) error {
	if p.own(victimName).disconnected(10 * time.Millisecond) {
		return errors.New("the victim's connection has ended")
	}
	if err := hangsEnd(p); err != nil {
		return err
	}
	show, err := p.site.client.Show()
	if err != nil {
		return err
	}
	if state := portState(&show, p.name+"-"+victimName); state != "up" {
		return fmt.Errorf("the victim's port is %s", state)
	}
	return nil
}
