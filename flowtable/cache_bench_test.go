package flowtable

import (
	"fmt"
	"math/rand"
	"testing"

	"weft/packet"
)

// Lookups of n connections in random order, one op a frame. "wide": all of one
// megaflow a port; "narrow": a megaflow each.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{1, 100, 10_000, 100_000, 200_000, 1_000_000} {
		b.Run(fmt.Sprintf("%d", n), func(b *testing.B) { benchLookup(b, n, DefaultSizes.Exact, false) })
	}
	b.Run("10000-ipv6-tunnel", func(b *testing.B) { benchLookup(b, 10_000, DefaultSizes.Exact, true) })
	b.Run("10000-megaflows-only", func(b *testing.B) { benchLookup(b, 10_000, 8, false) })
}

func benchLookup(b *testing.B, n, exact int, big bool) {
	sizes := DefaultSizes
	sizes.Exact = exact
	for sizes.Megaflows < n {
		sizes.Megaflows *= 2
	}
	c := NewCache(newMemory(b, sizes), 1)
	rng := rand.New(rand.NewSource(1))
	keys := make([]Key, n)
	mask := Key{WPort: ^uint64(0), WEthDst: ^uint64(0), WIP: 0xff << 56, WL4: 0xffffffff << 32, WIPv4: ^uint64(0)}
	if big {
		mask[WIPv6Src], mask[WIPv6Dst+1], mask[WTunID], mask[WTunIPv4] = ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)
	}
	for i := range keys {
		k := &keys[i]
		*k = Key{WPort: 1 << 32, WEthDst: 0x020000000001<<16 | 0x800, WIP: 17<<56 | 64<<40, WIPv4: 0x0a000001<<32 | uint64(i), WL4: uint64(i) << 32}
		if big {
			*k = Key{WPort: 1 << 32, WEthDst: 0x020000000001<<16 | 0x86dd, WIP: 17 << 56, WIPv6Src: 1, WIPv6Dst + 1: uint64(i), WTunID: 5, WTunIPv4: 7}
		}
		if r := c.Install(uint32(i), k, &mask, []Action{{Op: OpOutput, U32: uint32(i & 7)}}); r != Installed {
			b.Fatal(r)
		}
	}
	batches := make([][packet.BatchSize]Key, 64)
	picks := make([]uint32, 1<<20)
	for i := range picks {
		picks[i] = uint32(rng.Intn(n))
	}
	var out [packet.BatchSize]uint32
	var counts LookupCounts
	at := 0
	fill := func() {
		for i := range batches {
			for j := range batches[i] {
				batches[i][j] = keys[picks[at&(1<<20-1)]]
				at++
			}
		}
	}
	for range 3 * n / 2048 { // warm up
		fill()
		for i := range batches {
			c.Lookup(&batches[i], ^uint32(0), &out, &counts)
		}
	}
	counts = LookupCounts{}
	b.ResetTimer()
	for done := 0; done < b.N; {
		b.StopTimer()
		fill()
		b.StartTimer()
		for i := range batches {
			c.Lookup(&batches[i], ^uint32(0), &out, &counts)
			for _, slot := range out {
				c.m.Flows[slot].Packets++
			}
		}
		done += 2048
	}
	b.ReportMetric(100*float64(counts.ExactHits)/float64(counts.ExactHits+counts.MegaflowHits), "%exact")
}
