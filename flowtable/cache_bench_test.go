// SPDX-License-Identifier: Apache-2.0

package flowtable

import (
	"fmt"
	"math/rand"
	"testing"

	"weft/packet"
)

// benchFlows is a cache with n megaflows, one for each connection. It makes the keys of random ones of
// these connections.
type benchFlows struct {
	c     *Cache
	base  Key
	word  int
	picks []uint32
}

func newBenchFlows(b *testing.B, n int, sizes Sizes, tunnel bool) *benchFlows {
	for sizes.Megaflows < n {
		sizes.Megaflows *= 2
	}
	f := &benchFlows{c: NewCache(newMemory(b, sizes), 1)}
	mask := Key{WPort: ^uint64(0), WEthDst: ^uint64(0), WIP: 0xff << 56, WL4: 0xffffffff << 32, WIPv4: ^uint64(0)}
	f.base = Key{WPort: 1 << 32, WEthDst: 0x020000000001<<16 | 0x800, WIP: 17<<56 | 64<<40, WL4: 1 << 32}
	f.word = WIPv4
	if tunnel {
		mask[WIPv6Src], mask[WIPv6Dst+1], mask[WTunID], mask[WTunIPv4] = ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)
		f.base[WIPv6Src], f.base[WTunID], f.base[WTunIPv4] = 1, 5, 7
		f.word = WIPv6Dst + 1
	}
	for i := range uint32(n) {
		k := f.base
		k[f.word] = uint64(i)
		if r := f.c.Install(i, &k, &mask, []Action{{Op: OpOutput, U32: i & 7}}); r != Installed {
			b.Fatal(r)
		}
	}
	rng := rand.New(rand.NewSource(1))
	f.picks = make([]uint32, 1<<20)
	for i := range f.picks {
		f.picks[i] = uint32(rng.Intn(n))
	}
	return f
}

// run makes the keys of random frames and, if lookup is true, looks them up as a worker does. A run without
// look-ups measures the time that the keys take.
func (f *benchFlows) run(frames int, lookup bool) (n LookupCounts) {
	var keys [packet.BatchSize]Key
	var out [packet.BatchSize]uint32
	for done := 0; done < frames; done += packet.BatchSize {
		picks := f.picks[done&(1<<20-1):]
		for i := range keys {
			keys[i] = f.base
			keys[i][f.word] = uint64(picks[i])
		}
		if !lookup {
			continue
		}
		f.c.Lookup(&keys, ^uint32(0), &out, &n)
		for _, slot := range out {
			f.c.Flow(slot).Packets++
		}
	}
	return n
}

// One operation of the benchmark is the look-up of one frame of a random connection.
func BenchmarkLookup(outer *testing.B) {
	outer.Run("only-making-keys", func(b *testing.B) {
		newBenchFlows(b, 1, DefaultSizes, false).run(b.N, false)
	})
	tiny := DefaultSizes
	tiny.Exact = bucketEntries
	for _, c := range []struct {
		name   string
		n      int
		sizes  Sizes
		tunnel bool
	}{
		{"flows", 1, DefaultSizes, false},
		{"flows", 100, DefaultSizes, false},
		{"flows", 10_000, DefaultSizes, false},
		{"flows", 100_000, DefaultSizes, false},
		{"flows", 200_000, DefaultSizes, false},
		{"flows", 1_000_000, DefaultSizes, false},
		{"tunnel-ipv6", 10_000, DefaultSizes, true},
		{"no-exact", 10_000, tiny, false},
	} {
		var f *benchFlows
		outer.Run(fmt.Sprintf("%s-%d", c.name, c.n), func(b *testing.B) {
			if f == nil {
				f = newBenchFlows(outer, c.n, c.sizes, c.tunnel)
				f.run(1<<20, true)
				b.ResetTimer()
			}
			n := f.run(b.N, true)
			b.ReportMetric(100*float64(n.ExactHits)/float64(n.ExactHits+n.MegaflowHits), "%exact")
		})
	}
}
