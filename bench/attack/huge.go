// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// This file has an attack in which a guest removes the huge pages of its memory while the switch uses
// them. It adds huge pages to the machine's pool if too few are free.

func hugeAttacks() []*attack {
	return []*attack{
		{name: "hugetlb-punched", attacker: "front end", summary: "punches its huge pages away while frames pass",
			setup: hugeSetup, play: punchHuge},
	}
}

const (
	hugeSize    = 2 << 20
	hugePages   = 8
	hugeControl = "/proc/sys/vm/nr_hugepages"
)

func hugeSetup(p *play) error {
	if hugeFree() < hugePages {
		text, err := os.ReadFile(hugeControl)
		if err != nil {
			return err
		}
		was, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		if err := os.WriteFile(hugeControl, []byte(strconv.Itoa(was+hugePages)), 0); err != nil {
			return err
		}
		p.later(func() { _ = os.WriteFile(hugeControl, text, 0) })
		if hugeFree() < hugePages {
			return errors.New("the machine has no room for huge pages")
		}
	}
	return echoPort()(p)
}

// punchHuge sends frames from huge pages, and punches these pages out of the file meanwhile.
func punchHuge(p *play) error {
	return p.negotiated(func(g *vhosttest.Guest, f *vhosttest.FrontEnd) error {
		fd, err := unix.MemfdCreate("huge", unix.MFD_CLOEXEC|unix.MFD_HUGETLB)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Ftruncate(fd, hugePages*hugeSize); err != nil {
			return err
		}
		const base = 1 << 40
		huge := vhost.RegionSpec{GuestAddr: base, UserAddr: base, Size: hugePages * hugeSize}
		if err := ask(f, vhosttest.SetMemTable, table(g.Regions()[0], huge), g.FD(), fd); err != nil {
			return ignoreClosed(err)
		}
		if err := f.StartQueues(g, (*vhosttest.Queue).Start); err != nil {
			return ignoreClosed(err)
		}
		tx := g.Tx[0]
		held := &guest{Guest: g, front: f, play: p}
		for n := 0; !p.expired(); n++ {
			for i := range 8 {
				slot := (8*n + i) % 64
				tx.Descs[slot] = vhosttest.Desc{Addr: base + uint64((8*n+i)%hugePages)*hugeSize + 64, Len: 1400}
				tx.Offer(uint16(slot))
			}
			tx.Publish()
			held.drain()
			tx.Reclaim()
			at := int64(n%hugePages) * hugeSize
			if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, hugeSize); err != nil {
				return err
			}
			if n%512 == 511 && p.rng.IntN(4) == 0 { // leaves no huge page in the file
				return ignoreClosed(unix.Ftruncate(fd, 0))
			}
		}
		return nil
	})
}
