// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"weft/port"
)

// MemoryLimits limit the guest memory, dirty logs and inflight buffers that the engine
// maps. All guests share the engine's address space and page tables. A front end that
// exceeds a limit is refused, and its connection is closed.
type MemoryLimits struct {
	Guest uint64 // bytes mapped for one guest
	All   uint64 // bytes mapped for all guests
	// Share is the number of bytes that each guest may map, however much the others map. The limit All is
	// at least Share times port.MaxPorts. Guests compete for the rest.
	Share    uint64
	Mappings int // largest number of mapped regions of all guests
}

const (
	// addressSpace is the size in bytes of a process's address space on amd64. On
	// arm64 with 4 KiB pages it is larger.
	addressSpace = 1 << 47
	// minGuestLimit is the smallest default of MemoryLimits.Guest, unless half of MemoryLimits.All is less.
	// It is enough for a guest of 1 TiB together with the other memory that QEMU shares.
	minGuestLimit = 2 << 40
)

// DefaultMemoryLimits returns limits for this machine. All guests together may map half of the address
// space (or of RLIMIT_AS), in three quarters of vm.max_map_count mappings. One guest may map twice the
// machine's memory, or 2 TiB if that is more, but at most half of the limit for all guests.
func DefaultMemoryLimits() MemoryLimits {
	l := MemoryLimits{Guest: minGuestLimit, All: addressSpace / 2, Mappings: maxMappings() / 4 * 3}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err == nil {
		l.All = min(l.All, limit.Cur/2)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		l.Guest = max(l.Guest, 2*uint64(info.Totalram)*uint64(info.Unit))
	}
	l.Share = l.All / 2 / port.MaxPorts
	l.Guest = min(l.Guest, l.All/2)
	return l
}

// maxMappings returns vm.max_map_count, or the kernel's default if it cannot be read.
func maxMappings() int {
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return n
		}
	}
	return 65530
}

// MemoryPool counts how much memory the engine has mapped for the guests of a switch. Its methods are safe
// for concurrent use.
type MemoryPool struct {
	limits MemoryLimits

	mu       sync.Mutex
	guests   map[uint32]*GuestMemory // key: port
	bytes    uint64
	excess   uint64 // bytes beyond the shares of the guests
	mappings int
	refused  uint64
}

// NewMemoryPool returns an empty pool.
func NewMemoryPool(l MemoryLimits) *MemoryPool {
	return &MemoryPool{limits: l, guests: map[uint32]*GuestMemory{}}
}

// GuestMemory counts how much memory is mapped for one guest of a MemoryPool.
type GuestMemory struct {
	pool     *MemoryPool
	port     uint32
	bytes    uint64
	mappings int
	refused  uint64
}

// Guest returns a GuestMemory for the guest of a port, which has no memory yet.
func (p *MemoryPool) Guest(port uint32) *GuestMemory {
	g := &GuestMemory{pool: p, port: port}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.guests[port] = g
	return g
}

// MemoryUse tells how much memory is mapped for one guest, or for all guests together.
type MemoryUse struct {
	Port     uint32 // 0: all guests
	Bytes    uint64
	Mappings int
	Refused  uint64 // number of messages refused because of a limit
}

// Use returns the limits, the sum over all guests (Port 0), and then one entry for each guest.
func (p *MemoryPool) Use() (MemoryLimits, []MemoryUse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	use := []MemoryUse{{Bytes: p.bytes, Mappings: p.mappings, Refused: p.refused}}
	for port, g := range p.guests {
		use = append(use, MemoryUse{Port: port, Bytes: g.bytes, Mappings: g.mappings, Refused: g.refused})
	}
	return p.limits, use
}

// footprint is the address space that a guest uses: bytes and mappings. The field bytes
// stays at its maximum instead of overflowing.
type footprint struct {
	bytes    uint64
	mappings int
}

func (f *footprint) add(bytes uint64) {
	if f.mappings++; f.bytes+bytes < f.bytes {
		f.bytes = ^uint64(0)
		return
	}
	f.bytes += bytes
}

// resize sets the guest's mapped memory to footprint f. If the footprint grows beyond a limit, resize
// changes nothing but the count of refusals, and returns an error.
func (g *GuestMemory) resize(f footprint) error {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if f.bytes > g.bytes || f.mappings > g.mappings {
		if err := g.check(f); err != nil {
			g.refused++
			p.refused++
			return err
		}
	}
	g.set(f)
	return nil
}

// adopt sets the guest's mapped memory to footprint f. It checks no limit, because the memory is already
// mapped or reserved.
func (g *GuestMemory) adopt(f footprint) {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	g.set(f)
}

// check returns an error if the guest's mapped memory may not grow to footprint f because of a limit. The
// caller holds pool.mu.
func (g *GuestMemory) check(f footprint) error {
	p, l := g.pool, &g.pool.limits
	switch {
	case f.bytes > l.Guest:
		return fmt.Errorf("guest memory: %d bytes in all, expected at most %d (weftd --guest-memory-gib)", f.bytes, l.Guest)
	case f.bytes > l.Share && p.excess-l.beyondShare(g.bytes)+l.beyondShare(f.bytes) > l.All-l.Share*port.MaxPorts:
		return fmt.Errorf("guest memory: %d bytes in all, but other guests have mapped %d of the %d bytes for all guests", f.bytes, p.bytes-g.bytes, l.All)
	case p.mappings-g.mappings+f.mappings > l.Mappings:
		return fmt.Errorf("guest memory: %d mappings, but other guests have %d of the %d for all guests (vm.max_map_count)", f.mappings, p.mappings-g.mappings, l.Mappings)
	}
	return nil
}

// beyondShare returns the number of bytes by which n exceeds a guest's share.
func (l *MemoryLimits) beyondShare(n uint64) uint64 { return n - min(n, l.Share) }

func (g *GuestMemory) set(f footprint) {
	p := g.pool
	p.bytes += f.bytes - g.bytes
	p.excess += p.limits.beyondShare(f.bytes) - p.limits.beyondShare(g.bytes)
	p.mappings += f.mappings - g.mappings
	g.bytes, g.mappings = f.bytes, f.mappings
}

// close removes the guest and its memory from the pool.
func (g *GuestMemory) close() {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	g.set(footprint{})
	if p.guests[g.port] == g {
		delete(p.guests, g.port)
	}
}

// footprint returns the bytes and mappings that the device of this front end needs.
func (f *frontEnd) footprint() (sum footprint) {
	for i := range f.Regions {
		sum.add(f.Regions[i].span)
	}
	if f.Log.Size > 0 {
		sum.add(f.Log.Size)
	}
	if f.Inflight.Size > 0 {
		sum.add(f.Inflight.Size)
	}
	return sum
}

// reserve counts the memory that the front end's state will need after the function change, which it
// applies only to a copy of the state. If this memory exceeds a limit, reserve counts nothing and returns
// an error.
func (s *Session) reserve(change func(f *frontEnd)) error {
	next := s.front.clone()
	change(&next)
	return s.memory.resize(next.footprint())
}
