// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"testing"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofp/ofptest"
)

// bundlePeer sends requests of bundles, with xid 2.
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

// The messages of bundles are limited in bytes, by connection and in all. A message beyond
// a limit is refused and counted. What is committed, discarded or lost with its connection
// no longer counts.
func TestBundleBytes(t *testing.T) {
	const text = "ip,actions=output:2"
	size := int64(len(flow(t, openflow.Version14, 2, openflow.Add, text))) + messageCost
	r := newRig(t, func(s *Setup) {
		s.bundleLimits = bundleSize{bytes: 3 * size, items: 100, frames: 100, actions: 100}
		s.bridgeBundleBytes = 4 * size
	})
	first, second := bundlePeer{r.connect(openflow.Version14)}, bundlePeer{r.connect(openflow.Version14)}
	expect := func(p bundlePeer, refused uint64) {
		t.Helper()
		for _, code := range p.errors() {
			if code != 12 {
				t.Errorf("error 17.%d, want 17.12", code)
			}
		}
		if got := r.service.Counts().BundlesRefused.Load(); got != refused {
			t.Errorf("%d messages refused, want %d", got, refused)
		}
	}
	for id := range uint32(4) {
		first.add(id, text)
	}
	expect(first, 1) // its fourth
	second.add(1, text)
	second.add(1, text)
	expect(second, 2) // the fifth of all
	first.control(0, ofp.BundleDiscard)
	expect(first, 2)
	second.add(1, text)
	expect(second, 2)
	first.control(1, ofp.BundleCommit)
	expect(first, 2)
	second.add(1, text)
	expect(second, 2)
	if r.sw.flows() != 1 {
		t.Errorf("%d flows, want the committed one", r.sw.flows())
	}
	first.Close()
	second.Close()
	for end := time.Now().Add(patience); r.service.bundleBytes.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d bytes count after their connections", r.service.bundleBytes.Load())
		}
	}
}

// The actions of bundled messages are limited, too, because they are longer in memory than
// in a message.
func TestBundleActions(t *testing.T) {
	r := newRig(t, func(s *Setup) { s.bundleLimits = bundleSize{bytes: 1 << 20, items: 100, frames: 100, actions: 5} })
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
	if n := r.service.Counts().BundlesExpired.Load(); n != 1 || r.service.bundleBytes.Load() != 0 {
		t.Errorf("%d bundles expired, %d bytes left", n, r.service.bundleBytes.Load())
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
	if p.barrier(); r.service.Counts().BundlesExpired.Load() != 0 {
		t.Error("the bundle ends during a request")
	}
	for end := time.Now().Add(patience); r.service.Counts().BundlesExpired.Load() == 0; time.Sleep(time.Millisecond) {
		age()
		c.expire(1, b) // the request ends behind its answer
		if time.Now().After(end) {
			t.Fatal("an idle bundle stays")
		}
	}
}
