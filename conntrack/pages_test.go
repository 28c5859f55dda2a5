// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"io"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// allocated returns the resident memory of a shared region in bytes.
func allocated(t *testing.T, r *shm.Region) int {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(r.FD(), &st); err != nil {
		t.Fatal(err)
	}
	return int(st.Blocks) * 512
}

// A full table uses the memory that the comment of DefaultConnections gives.
func TestMemoryAConnection(t *testing.T) {
	const n = 1 << 12
	labels := commit
	labels.LabelMask, labels.Label = [2]uint64{0, 1}, [2]uint64{0, 1}
	snat := commit
	snat.NAT = NAT{Kind: NATSrc, IPv6: true, Lo: addrWords(netip.MustParseAddr("2001:db8::1")), Hi: addrWords(netip.MustParseAddr("2001:db8::1"))}
	syn := func(src, dst string) []byte {
		return tcpFrame(src, dst, tcpSegment{flags: "S", seq: 1, window: 1000, scale: -1})
	}
	for _, c := range []struct {
		name  string
		frame func(src string) []byte
		req   Request
		limit int // bytes for each connection
	}{
		{"udp", func(src string) []byte { return udpFrame("10.0.0.1:"+src, server, 4) }, commit, 116},
		{"tcp", func(src string) []byte { return syn("10.0.0.1:"+src, server) }, commit, 148},
		{"udp, labelled", func(src string) []byte { return udpFrame("10.0.0.1:"+src, server, 4) }, labels, 132},
		{"udp over IPv6", func(src string) []byte { return udpFrame("[fd00::1]:"+src, "[fd00::2]:53", 4) }, commit, 148},
		{"tcp over IPv6", func(src string) []byte { return syn("[fd00::1]:"+src, "[fd00::2]:53") }, commit, 180},
		{"tcp over IPv6, translated", func(src string) []byte { return syn("[fd00::1]:"+src, "[2001:db8::2]:53") }, snat, 212},
	} {
		var l shm.Layout
		CarveMemory(&l, Sizes{Connections: n})
		region, err := shm.Create("conntrack-test", l.Off)
		if err != nil {
			t.Fatal(err)
		}
		m := CarveMemory(&shm.Layout{Mem: region.Bytes()}, Sizes{Connections: n})
		Init(m, 42)
		r := newRigOf(t, Open(m, 1))
		read := func() { // reading the table populates no pages
			check(t, r.tr.Table)
			if err := m.Save(io.Discard, "", r.now); err != nil {
				t.Fatal(err)
			}
			m.Each(r.now, func(*Entry) bool { return true })
		}
		read()
		before := allocated(t, region)
		for i := range n {
			r.send(c.frame(port(i+1)), c.req)
		}
		read()
		if got := allocated(t, region) - before + 64*len(m.buckets); m.Count() != n || got > n*c.limit+13*4096 || got < n*(c.limit-16) {
			t.Errorf("%s: %d connections take %d bytes each, want %d", c.name, m.Count(), got/n, c.limit)
		}
		region.Close()
	}
}

// In a growing table, pages are populated before records in them are needed. In an empty table, none are.
func TestPagesAhead(t *testing.T) {
	const n = 1 << 14
	s := Sizes{Connections: n}
	var l shm.Layout
	CarveMemory(&l, s)
	region, err := shm.Create("conntrack-test", l.Off)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	pages := func() int { return allocated(t, region) / 4096 }
	m := CarveMemory(&shm.Layout{Mem: region.Bytes()}, s)
	Init(m, 42)
	r := newRigOf(t, Open(m, 1))
	if err := r.tr.StartPopulating(); err != nil {
		t.Fatal(err)
	}
	defer r.tr.StopPopulating()
	idle := pages()
	for i := range 1000 {
		r.expect(udpFrame("10.0.0.1:"+port(i+1), server, 4), commit, Tracked|New)
		r.now += second / 1000
		r.tr.Sweep(r.now)
	}
	for begin := time.Now(); r.tr.pages.records.Load() < 1500; {
		if time.Since(begin) > 60*time.Second {
			t.Fatalf("%d records have populated pages, want more", r.tr.pages.records.Load())
		}
		time.Sleep(time.Millisecond)
	}
	if grown, records := pages()-idle, int(r.tr.pages.records.Load()); idle > 300 || grown < records*(64+16)/4096+len(m.buckets)*64/4096-64 || records > 5000 {
		t.Errorf("%d pages taken when unused, %d more with %d records", idle, grown, records)
	}
	check(t, r.tr.Table)
}
