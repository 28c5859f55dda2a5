// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// In the attacks of this file, an attacker exchanges frames with a victim. The attacker's buffers are
// in a file of gigabytes, and it punches a hole into this file. The worker that copies a frame between
// the two guests then hangs. The switch must blame only the attacker's port. The attacker's rings and
// the frames' headers are in ordinary memory.

func holeAttacks() []*attack {
	return []*attack{
		{name: "payload-punched", exclusive: true, kills: true, attacker: "front end",
			summary: "sends to a victim from a file of gigabytes that it punches, headers in sound memory",
			setup:   counting(victimSetup), play: punchPayload, check: victimStays},
		{name: "receive-buffers-punched", exclusive: true, kills: true, attacker: "front end",
			summary: "lets a victim send into a file of gigabytes that it punches",
			setup:   counting(victimSetup), play: punchBuffers, check: victimStays},
		{name: "chains-punched", attacker: "front end",
			summary: "sends chains of 1,000 one-byte pieces, each on a page of its own, which it punches all the time",
			setup:   victimSetup, play: punchChains, check: victimConnected},
		{name: "receive-chains-punched", attacker: "front end",
			summary: "lets a victim send into such chains",
			setup:   victimSetup, play: punchReceiveChains, check: victimConnected},
	}
}

const (
	holeBase = 1 << 40 // guest address at which the file begins
	// holePart is the number of bytes of the file that the switch maps.
	holePart    = 1 << 20
	holeBuffer  = 4096
	victimName  = "victim"
	holeRequest = 16 // frames that one call of "traffic" offers
)

// victimSetup adds a port for the attacker and one for the victim, and attaches the victim. The flows
// send the frames of each to the other.
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

// hole is the attacker's guest. Its second memory region is the file into which it punches a hole.
type hole struct {
	*guest
	fd   int
	size int64
}

// withHole attaches the attacker's guest with a file of gigabytes as its second memory region, and
// calls "do". "offer" writes descriptors before the queues start. If the switch refuses the port
// because of an earlier hang, withHole returns nil and does not call "do".
func withHole(p *play, offer func(g *vhosttest.Guest), do func(h *hole) error) error {
	size := max(min(int64(punchedBytes), machineFree()/4), holePart)
	return withFile(p, size, holePart, vhosttest.Options{Num: 64}, offer, do)
}

// withFile does the work of withHole for a file of "size" bytes. The switch maps only the first "part"
// bytes of the file.
func withFile(p *play, size int64, part uint64, o vhosttest.Options, offer func(g *vhosttest.Guest), do func(h *hole) error) error {
	err := p.negotiatedWith(o, func(g *vhosttest.Guest, f *vhosttest.FrontEnd) error {
		fd, err := unix.MemfdCreate("hole", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		h := &hole{guest: &guest{Guest: g, front: f, play: p}, fd: fd, size: size}
		if err := unix.Ftruncate(fd, h.size); err != nil {
			return err
		}
		region := vhost.RegionSpec{GuestAddr: holeBase, UserAddr: holeBase, Size: part}
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
		err = nil // no fault: the switch refuses the port for a while
	}
	time.Sleep(20 * time.Millisecond)
	return err
}

// punch allocates the whole file, and then punches a hole as large as the file. It calls "traffic" for
// a while before, and then until the kernel has punched the hole.
func (h *hole) punch(traffic func()) error {
	if err := unix.Fallocate(h.fd, 0, 0, h.size); err != nil {
		return err
	}
	for range 20 { // makes the switch access the pages
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

// answered waits until the API returns the switch's state. It does not do so while an engine hangs.
func (p *play) answered() (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = p.site.client.Show(); err == nil {
			break
		}
	}
	return err
}

// punchPayload sends frames of two descriptors to the victim: headers in ordinary memory, and payload in
// the hole.
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

// punchBuffers offers receive buffers in the hole, and lets the victim send to them.
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

// victimStays fails if the switch has ended the victim's session, if the victim's port is not up, or if
// hangsEnd fails.
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

// victimConnected fails if the switch has ended the victim's session.
func victimConnected(p *play) error {
	if p.own(victimName).disconnected(10 * time.Millisecond) {
		return errors.New("the victim's connection has ended")
	}
	return nil
}

// pagesBytes is the size of a file with one page for each descriptor of a chain.
const pagesBytes = chainPieces * 4096

// pagewise writes an indirect table of one-byte descriptors, each of which refers to another page of the
// file. It makes each of the queue's descriptors refer to this table.
func (h *hole) pagewise(q *vhosttest.Queue, flags uint16) {
	d := h.bytewise(q, chainPieces, holeBase, flags)
	table, _ := h.Bytes(d.Addr, uint64(d.Len)) // valid, because bytewise has written it
	for i := range chainPieces {
		binary.LittleEndian.PutUint64(table[16*i:], holeBase+uint64(i)*4096)
	}
	for i := range q.Descs {
		q.Descs[i] = d
	}
}

// punchAlways punches holes of the file's size until the caller calls the returned function.
func (h *hole) punchAlways() (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Fallocate(h.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, h.size)
			}
		}
	}()
	return func() { close(stop); <-ended }
}

var pagewiseOptions = vhosttest.Options{Num: 64, BufLen: 32 << 10}

func punchChains(p *play) error {
	victim := p.own(victimName)
	return withFile(p, pagesBytes, pagesBytes, pagewiseOptions, func(*vhosttest.Guest) {}, func(h *hole) error {
		tx := h.Tx[0]
		h.pagewise(tx, 0)
		defer h.punchAlways()()
		for offered := tx.UsedIndex(); !p.expired(); time.Sleep(20 * time.Microsecond) {
			for ; offered-tx.UsedIndex() < uint16(h.Num); offered++ {
				tx.Offer(offered % uint16(h.Num))
			}
			tx.Publish()
			victim.flush()
		}
		return nil
	})
}

func punchReceiveChains(p *play) error {
	victim := p.own(victimName)
	offer := func(g *vhosttest.Guest) {
		rx := g.Rx[0]
		rx.Withdraw()
		h := &hole{guest: &guest{Guest: g, play: p}}
		h.pagewise(rx, vhosttest.Write)
		for i := range g.Num {
			rx.Offer(uint16(i))
		}
		rx.Publish()
	}
	return withFile(p, pagesBytes, pagesBytes, pagewiseOptions, offer, func(h *hole) error {
		defer h.punchAlways()()
		rx, offered := h.Rx[0], uint16(h.Num)
		for !p.expired() {
			for range holeRequest {
				victim.Tx[0].Send(ether(nobodysMAC, attackerMAC, 0x88b5, 900))
			}
			victim.Tx[0].Publish()
			victim.Tx[0].Reclaim()
			for ; offered-rx.UsedIndex() < uint16(h.Num); offered++ {
				rx.Offer(offered % uint16(h.Num))
			}
			rx.Publish()
			time.Sleep(20 * time.Microsecond)
		}
		return nil
	})
}
