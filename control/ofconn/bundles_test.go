// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
)

// inUse returns the bytes that all bundles use.
func (p *BundlePool) inUse() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used
}

// expirations returns the number of bundles that were discarded because no message came.
func (p *BundlePool) expirations() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.expired
}

// bundlePeer is a peer that sends requests about bundles, all with xid 2.
type bundlePeer struct{ *peer }

func (p bundlePeer) control(id uint32, kind ofp.BundleType) {
	p.write(ofptest.Message(p.v, 33, 2, id, uint16(kind), uint16(ofp.BundleAtomic)))
}

func (p bundlePeer) add(id uint32, text string) {
	p.write(ofptest.Message(p.v, 34, 2, id, uint16(0), uint16(ofp.BundleAtomic), flow(p.t, p.v, 2, openflow.Add, text)))
}

// errors returns the codes of the error messages that arrive before the answer to a barrier.
func (p bundlePeer) errors() (codes []uint16) {
	for _, m := range p.barrier() {
		if m[1] == ofp.TypeError {
			_, code, _ := errorOf(p.t, m)
			codes = append(codes, code)
		}
	}
	return codes
}

// The memory of bundles is limited: the bundles of a peer may have as many bytes as they leave
// free. A message beyond this limit is refused and counted. Bundles that are committed,
// discarded or lost with their connection no longer count.
func TestBundleBytes(t *testing.T) {
	pool := NewBundlePool()
	pool.limit = 6 * bundleBlock
	var peers atomic.Int32
	r := newRig(t, func(s *Setup) {
		s.Bundles = pool
		s.Role = func(net.Conn) (Role, string) { return Write, fmt.Sprint("peer ", (peers.Add(1)+1)/2) }
	})
	connect := func() bundlePeer { return bundlePeer{r.connect(openflow.Version14)} }
	first, again, second := connect(), connect(), connect()
	expect := func(p bundlePeer, refused uint64, blocks int64) {
		t.Helper()
		for _, code := range p.errors() {
			if code != 12 {
				t.Errorf("error 17.%d, want 17.12", code)
			}
		}
		pool.mu.Lock()
		defer pool.mu.Unlock()
		if pool.refused != refused || pool.used != blocks*bundleBlock {
			t.Errorf("%d messages refused, %d bytes; want %d, and %d", pool.refused, pool.used, refused, blocks*bundleBlock)
		}
	}
	const text = "ip,actions=output:2"
	first.add(0, text)
	first.add(1, text)
	expect(first, 0, 2)
	again.add(0, text)
	expect(again, 0, 3)
	again.add(1, text) // a fourth block of six
	expect(again, 1, 3)
	second.add(0, text)
	expect(second, 1, 4)
	second.add(1, text) // two of six while one is free
	expect(second, 2, 4)
	first.control(0, ofp.BundleDiscard)
	first.control(1, ofp.BundleCommit)
	expect(first, 2, 2)
	second.add(1, text)
	expect(second, 2, 3)
	if r.sw.flows() != 1 {
		t.Errorf("%d flows, want the committed one", r.sw.flows())
	}
	for _, p := range []bundlePeer{first, again, second} {
		p.Close()
	}
	for end := time.Now().Add(patience); pool.inUse() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes count after their connections", pool.inUse())
		}
	}
}

// Messages come out of a messageStore as they went in, also if they cross blocks. The error of
// a commit names the refused message.
func TestMessageStore(t *testing.T) {
	var s messageStore
	defer s.free()
	rng := rand.New(rand.NewPCG(1, 2))
	var want [][]byte
	for range 60 {
		m := make([]byte, ofp.HeaderLen+rng.IntN(1<<16-ofp.HeaderLen))
		if rng.IntN(2) == 0 {
			m = m[:ofp.HeaderLen+rng.IntN(9)]
		}
		for i := range m {
			m[i] = byte(rng.Uint32())
		}
		binary.BigEndian.PutUint16(m[2:], uint16(len(m)))
		blocks := len(s.blocks) + s.blocksFor(len(m))
		if err := s.add(m); err != nil || len(s.blocks) != blocks {
			t.Fatalf("%d blocks (%v), want %d", len(s.blocks), err, blocks)
		}
		want = append(want, m)
	}
	var m []byte
	offset := 0
	for i := range want {
		if m, offset = s.next(m[:0], offset); !bytes.Equal(m, want[i]) {
			t.Fatalf("message %d has %d bytes, want %d", i, len(m), len(want[i]))
		}
	}
	if offset != s.length || (s.length+bundleBlock-1)/bundleBlock != len(s.blocks) {
		t.Errorf("%d of %d bytes read, %d blocks", offset, s.length, len(s.blocks))
	}
}

// The error of a commit repeats the first bytes of the refused message.
func TestBundleNamesTheRefusedMessage(t *testing.T) {
	r := newRig(t)
	p := bundlePeer{r.connect(openflow.Version14)}
	for i := range 3 {
		p.add(1, fmt.Sprintf("in_port=%d,actions=2", i+1))
	}
	p.add(1, "check_overlap,actions=3")
	p.control(1, ofp.BundleCommit)
	kind, _, _ := errorOf(t, p.read())
	if kind != 5 {
		t.Errorf("error of type %d first, want that of a flow_mod", kind)
	}
	if kind, _, _ := errorOf(t, p.read()); kind != 17 || r.sw.flows() != 0 {
		t.Errorf("error of type %d then, %d flows", kind, r.sw.flows())
	}
}

// All connections get their turn to decode, also while one of them pauses.
func TestTurn(t *testing.T) {
	var turn turn
	var ended sync.WaitGroup
	busy, calls := 0, 0
	for range 20 {
		ended.Go(func() {
			for range 100 {
				turn.do(func() {
					if busy++; busy != 1 {
						t.Error("two at once")
					}
					calls++
					busy--
				})
			}
		})
	}
	ended.Wait()
	if calls != 2000 || turn.waiting.Load() != 0 {
		t.Errorf("%d calls, %d wait", calls, turn.waiting.Load())
	}
}

// The actions of bundled messages are limited, too, because they are longer in memory than
// in a message.
func TestBundleActions(t *testing.T) {
	r := newRig(t, func(s *Setup) { s.bundleLimits = bundleSize{items: 100, frames: 100, actions: 5} })
	p := bundlePeer{r.connect(openflow.Version14)}
	p.add(1, "ip,actions=output:1,ct(commit,exec(load:1->NXM_NX_CT_MARK[])),output:2")
	p.add(1, "actions=output:1,output:2")
	if codes := p.errors(); len(codes) != 1 || codes[0] != 12 {
		t.Errorf("errors %v, want one with code 12", codes)
	}
}

// A bundle without a message for bundleTimeout is discarded with an error.
func TestIdleBundleEnds(t *testing.T) {
	r := newRig(t, func(s *Setup) { s.bundleTimeout = 50 * time.Millisecond })
	p := bundlePeer{r.connect(openflow.Version14)}
	p.add(1, "actions=drop")
	if kind, code, xid := errorOf(t, p.read()); kind != 17 || code != 14 || xid != 2 {
		t.Errorf("error %d.%d of %d, want 17.14 of 2", kind, code, xid)
	}
	p.control(1, ofp.BundleCommit)
	if codes := p.errors(); len(codes) != 1 || codes[0] != 2 || r.sw.flows() != 0 {
		t.Errorf("the commit of a discarded bundle gets errors %v", codes)
	}
	if pool := r.service.setup.Bundles; pool.inUse() != 0 || pool.expirations() != 1 {
		t.Errorf("%d bundles expired, %d bytes left", pool.expirations(), pool.inUse())
	}
}

// A bundle does not end while the switch executes a long request of its peer.
func TestLongRequestKeepsBundles(t *testing.T) {
	r := newRig(t, func(s *Setup) { s.bundleTimeout = time.Hour })
	p := bundlePeer{r.connect(openflow.Version14)}
	p.add(1, "actions=drop")
	p.barrier()
	c := r.service.connections()[0]
	age := func() *bundle {
		c.bundles.mu.Lock()
		defer c.bundles.mu.Unlock()
		b := c.bundles.open[1]
		if b == nil {
			t.Fatal("the bundle has ended")
		}
		b.used = time.Now().Add(-2 * time.Hour)
		return b
	}
	b := age()
	r.sw.mu.Lock()
	handled := r.service.Counts().Messages.Load()
	p.write(flow(t, p.v, 1, openflow.Add, "actions=drop"))
	for end := time.Now().Add(patience); r.service.Counts().Messages.Load() == handled; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the request does not begin")
		}
	}
	c.expire(1, b)
	r.sw.mu.Unlock()
	if p.barrier(); r.service.setup.Bundles.expirations() != 0 {
		t.Error("the bundle ends during a request")
	}
	for end := time.Now().Add(patience); r.service.setup.Bundles.expirations() == 0; time.Sleep(time.Millisecond) {
		age()
		c.expire(1, b) // repeated, because the request ends only after its answer
		if time.Now().After(end) {
			t.Fatal("an idle bundle stays")
		}
	}
}
