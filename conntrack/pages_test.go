package conntrack

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// Memory of the next connections is there before they come, and of a table that
// nobody uses none is taken.
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
	pages := func() int {
		var st unix.Stat_t
		if err := unix.Fstat(region.FD(), &st); err != nil {
			t.Fatal(err)
		}
		return int(st.Blocks) / 8
	}
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
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("%d records have their pages", r.tr.pages.records.Load())
		}
		time.Sleep(time.Millisecond)
	}
	if grown, records := pages()-idle, int(r.tr.pages.records.Load()); idle > 300 || grown < records*128/4096+len(m.buckets)*64/4096-64 || records > 5000 {
		t.Errorf("%d pages idle, %d more with %d records", idle, grown, records)
	}
	check(t, r.tr.Table)
}
