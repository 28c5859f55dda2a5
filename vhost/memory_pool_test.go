// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/port"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

func sum(p *vhost.MemoryPool) vhost.MemoryUse {
	_, use := p.Use()
	return use[0]
}

// sendMemory connects a front end that sends a memory table with sparse regions of these sizes. It
// returns the session's error, or "".
func (r *rig) sendMemory(t *testing.T, sizes ...uint64) string {
	t.Helper()
	f, err := vhosttest.Dial(r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	table, fds, at := vhosttest.Pair(len(sizes), 0), []int{}, uint64(0)
	for _, size := range sizes {
		table = append(table, vhosttest.Region(vhost.RegionSpec{GuestAddr: at, UserAddr: at, Size: size})...)
		fds = append(fds, memfd(t, int64(size)))
		at += size
	}
	breaks := r.Status().Breaks
	if err := f.Send(vhosttest.SetMemTable, vhosttest.Version, table, fds...); err != nil {
		t.Fatal(err)
	}
	if _, err := f.U64(vhosttest.GetFeatures, nil); err == nil {
		return ""
	}
	eventually(t, "disconnect", func() bool { return r.Status().Breaks > breaks })
	return r.Status().LastError
}

// TestMemoryLimits: a guest that exceeds a limit is refused. The refusal is logged in one line and
// counted. A guest of 1 TiB is accepted.
func TestMemoryLimits(t *testing.T) {
	limits := vhost.DefaultMemoryLimits()
	if limits.Guest < 1<<40+1<<30 || limits.Share < 16<<30 || limits.Share*port.MaxPorts > limits.All || limits.All > 1<<46 {
		t.Fatalf("default limits %+v", limits)
	}
	p := vhost.NewMemoryPool(limits)
	r := newRigOf(t, false, p.Guest(1))
	for _, sizes := range [][]uint64{
		{limits.Guest + 4096},
		{limits.Guest / 2, limits.Guest / 2, 4096},
		{1 << 62, 1 << 62, 1 << 62},
		{16383 << 30 * 8, 16383 << 30 * 8, 16383 << 30 * 8, 16383 << 30 * 8, 16383 << 30 * 8, 16383 << 30 * 8, 16383 << 30 * 8, 16383 << 30 * 8},
	} {
		if got := r.sendMemory(t, sizes...); !strings.Contains(got, "bytes in all, expected at most") {
			t.Fatalf("%d: %q", sizes, got)
		}
	}
	if use := sum(p); use.Bytes != 0 || use.Mappings != 0 || use.Refused != 4 {
		t.Fatalf("in use %+v", use)
	}
	if got := r.sendMemory(t, 1<<40, 1<<30); got != "" {
		t.Fatalf("1 TiB: %s", got)
	}
	if use := sum(p); use.Bytes != 1<<40+1<<30 || use.Mappings != 2 {
		t.Fatalf("in use %+v", use)
	}
}

// TestMemoryOfATebibyte: the engine maps a guest of 1 TiB and forwards its frames.
func TestMemoryOfATebibyte(t *testing.T) {
	g := guest(t, vhosttest.Options{Features: features})
	end := g.Regions()[0].MmapOffset + g.Regions()[0].Size
	if err := unix.Ftruncate(g.FD(), int64(end)+1<<40); err != nil {
		t.Fatal(err)
	}
	p := vhost.NewMemoryPool(vhost.DefaultMemoryLimits())
	r := newRigOf(t, false, p.Guest(1))
	f := r.attach(t, g)
	more := vhost.RegionSpec{GuestAddr: 1 << 42, UserAddr: 1 << 42, Size: 1 << 40, MmapOffset: end}
	if answer, err := f.Call(vhosttest.AddMemReg, append(vhosttest.Number(0), vhosttest.Region(more)...), g.FD()); err != nil || answer[0] != 0 {
		t.Fatalf("ADD_MEM_REG: %x, %v", answer, err)
	}
	r.waitRunning(t, true)
	r.echo(t, g, 1)
	if use := sum(p); use.Mappings != 2 || use.Bytes <= 1<<40 {
		t.Fatalf("in use %+v", use)
	}
	if answer, err := f.Call(vhosttest.RemMemReg, append(vhosttest.Number(0), vhosttest.Region(more)...)); err != nil || answer[0] != 0 {
		t.Fatalf("REM_MEM_REG: %x, %v", answer, err)
	}
	if use := sum(p); use.Mappings != 1 || use.Bytes >= 1<<40 {
		t.Fatalf("in use %+v", use)
	}
	r.Close()
	if use := sum(p); use != (vhost.MemoryUse{}) {
		t.Fatalf("in use after the end %+v", use)
	}
}

// TestMemoryShares: one guest maps all memory that is not reserved. The other guests still get their
// shares. When a guest disconnects, its memory becomes free again.
func TestMemoryShares(t *testing.T) {
	const share = 1 << 20
	p := vhost.NewMemoryPool(vhost.MemoryLimits{Guest: 8 * share, Share: share, All: (port.MaxPorts + 10) * share, Mappings: 7})
	a, b, c := newRigOf(t, false, p.Guest(1)), newRigOf(t, false, p.Guest(2)), newRigOf(t, false, p.Guest(3))
	if got := a.sendMemory(t, 8*share); got != "" {
		t.Fatal(got)
	}
	if got := b.sendMemory(t, 5*share); !strings.Contains(got, "other guests have mapped 8388608") {
		t.Fatalf("beyond what is left: %q", got)
	}
	if got := b.sendMemory(t, 4*share); got != "" {
		t.Fatal(got)
	}
	if got := c.sendMemory(t, 2*share); !strings.Contains(got, "other guests have mapped") {
		t.Fatalf("beyond what is left: %q", got)
	}
	if got := c.sendMemory(t, share/2, share/4, share/8, share/16, share/32, share/32); !strings.Contains(got, "vm.max_map_count") {
		t.Fatalf("many mappings: %q", got)
	}
	if got := c.sendMemory(t, share); got != "" {
		t.Fatalf("a share: %s", got)
	}
	a.Close()
	parts := b.Snapshot()
	b.Close()
	if use := sum(p); use.Bytes != share || use.Refused != 3 {
		t.Fatalf("in use %+v", use)
	}
	config := b.config(false)
	config.Memory = p.Guest(2)
	restored, err := vhost.Restore(config, b.engine, parts)
	if err != nil {
		t.Fatal(err)
	}
	defer restored.Close()
	if use := sum(p); use.Bytes != 5*share {
		t.Fatalf("in use %+v", use)
	}
}
