// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"testing"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

const logSize = 64 << 10 // bytes: covers 2 GiB of guest memory

func logFile(t *testing.T) (fd int, bitmap []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("dirty", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, logSize); err != nil {
		t.Fatal(err)
	}
	if bitmap, err = unix.Mmap(fd, 0, logSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(bitmap) })
	return fd, bitmap
}

// pages compares guest memory with a copy from before the device wrote to it.
type pages struct {
	mem, earlier []byte
}

func pagesOf(g *vhosttest.Guest) pages {
	last := g.Regions()[len(g.Regions())-1]
	mem := value(g.Bytes(vhosttest.GuestBase, last.GuestAddr+last.Size-vhosttest.GuestBase))
	return pages{mem, bytes.Clone(mem)}
}

// check returns the number of changed pages. The test fails if the dirty log does not mark a changed
// page.
func (p pages) check(t *testing.T, bitmap []byte) (changed int) {
	t.Helper()
	for off := 0; off < len(p.mem); off += 4096 {
		if bytes.Equal(p.mem[off:off+4096], p.earlier[off:off+4096]) {
			continue
		}
		changed++
		page := (vhosttest.GuestBase + uint64(off)) / 4096
		if bitmap[page/8]&(1<<(page%8)) == 0 {
			t.Errorf("page at %#x was written and is not marked", off)
		}
	}
	return changed
}

// TestDirtyLog: the device marks every page that it changes. It marks at most six times as many pages
// as it changes.
func TestDirtyLog(t *testing.T) {
	for name, features := range featureSets {
		for _, layout := range vhosttest.Layouts {
			t.Run(fmt.Sprintf("%s/%v", name, layout), func(t *testing.T) {
				o := vhosttest.Options{Num: 64, Features: features, Layout: layout, SplitRegions: true, Indirect: features&vhost.FeatureIndirect != 0}
				from, to := guest(t, o), guest(t, o)
				fd, bitmap := logFile(t)
				d, err := to.OpenLogged(fd, logSize)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				a, b := open(t, from, nil), new(packet.Batch)
				for i := range 7 {
					from.Tx[0].Send(random(uint64(i), 60+i*200))
					to.Tx[0].Send(random(uint64(i), 100))
				}
				from.Tx[0].Publish()
				to.Tx[0].Publish()
				p := pagesOf(to)
				forward(t, b, a, d)
				forward(t, b, d, a)
				d.Rx()[0].Arm()
				changed, marked := p.check(t, bitmap), 0
				for _, v := range bitmap {
					for ; v != 0; v &= v - 1 {
						marked++
					}
				}
				if changed < 3 || marked > 6*changed {
					t.Fatalf("%d pages marked, %d written", marked, changed)
				}
			})
		}
	}
}

// TestSessionLog turns the dirty log on and off as a migration does. After the migration, the device
// announces the guest.
func TestSessionLog(t *testing.T) {
	r := newRig(t, false)
	g := guest(t, vhosttest.Options{Features: features, Pairs: 2})
	f := r.attach(t, g)
	fd, bitmap := logFile(t)
	if b, err := f.Call(vhosttest.SetLogBase, append(vhosttest.Number(logSize), vhosttest.Number(0)...), fd); err != nil || len(b) != 0 {
		t.Fatalf("log: %v, %x", err, b)
	}
	logging := func(protocol uint64) {
		t.Helper()
		if _, err := f.U64(vhosttest.SetFeatures, vhosttest.Number(g.Features|vhost.FeatureProtocolFeatures|protocol)); err != nil {
			t.Fatal(err)
		}
		r.waitRunning(t, true)
	}
	send := func() pages {
		t.Helper()
		g.Tx[0].Send(random(1, 500))
		g.Tx[0].Publish()
		p := pagesOf(g)
		d := r.device()
		r.engine.Lock()
		defer r.engine.Unlock()
		forward(t, new(packet.Batch), d, d)
		return p
	}
	logging(vhost.FeatureLogAll)
	if n := send().check(t, bitmap); n < 2 {
		t.Fatalf("%d pages written", n)
	}
	logging(0)
	clear(bitmap)
	send()
	if !bytes.Equal(bitmap, make([]byte, logSize)) {
		t.Fatal("marked though nobody logs")
	}
	if err := f.Send(vhosttest.SendRARP, vhosttest.Version|vhosttest.NeedReply, []byte{2, 0, 0, 0, 0, 9, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if b, err := f.Reply(vhosttest.SendRARP); err != nil || binary.LittleEndian.Uint64(b) != 0 {
		t.Fatalf("announce: %v, %x", err, b)
	}
	r.waitRunning(t, true)
	b := new(packet.Batch)
	r.engine.Lock()
	defer r.engine.Unlock()
	rx := r.engine.Device.Rx()[0]
	if !rx.Arm() || rx.Recv(b) != 1 {
		t.Fatal("no announcement")
	}
	want := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 0x80, 0x35}
	if h := b.Frames[0].Header(); len(h) != 60 || !bytes.HasPrefix(h, want) {
		t.Fatalf("announced %x", h)
	}
	b.Reset()
	if n := rx.Recv(b); n != 0 {
		t.Fatalf("announced again: %d", n)
	}
}

// TestDirtyBytes: of a long chain, the device marks only the pages that the frame fills.
func TestDirtyBytes(t *testing.T) {
	const chain = 8
	for name, features := range featureSets { // a ring of 4096 descriptors has used elements in 9 pages (split) or 16 (packed)
		t.Run(name, func(t *testing.T) {
			o := vhosttest.Options{Num: 4096, BufLen: 512, Features: features}
			from, to := guest(t, o), guest(t, o)
			fd, bitmap := logFile(t)
			d, err := to.OpenLogged(fd, logSize)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			clear(bitmap) // the start marked the rings
			to.Rx[0].OfferLong(chain)
			from.Tx[0].Send(random(1, 64))
			from.Tx[0].Publish()
			p := pagesOf(to)
			if n := forward(t, new(packet.Batch), open(t, from, nil), d); n != 1 {
				t.Fatalf("%d frames", n)
			}
			changed, marked := p.check(t, bitmap), 0
			for _, v := range bitmap {
				marked += bits.OnesCount8(v)
			}
			// A frame, or the used elements, may cross the border between two pages.
			if changed < 2 || marked > changed+4 {
				t.Fatalf("%d pages marked, %d written", marked, changed)
			}
		})
	}
}
