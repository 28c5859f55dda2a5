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

// MemoryLimits bound what guests have mapped into the engine: memory, dirty log and
// in-flight memory. A mapping costs address space, and page tables where it is touched,
// but no memory of its own. A process without address space left cannot go on, whoever
// has taken it, so the sum is bounded. A front end that asks for more is refused, and
// its connection closed.
type MemoryLimits struct {
	Guest uint64 // bytes of one guest
	All   uint64 // bytes of all guests
	// Share is what a guest may map however much others have, bytes. All is at least
	// Share times port.MaxPorts; beyond their shares guests take what is left.
	Share    uint64
	Mappings int // of all guests; a region is one
}

const (
	// addressSpace is what a process has on amd64 and, with pages of 4 KiB, at least
	// on arm64, in bytes.
	addressSpace = 1 << 47
	// minGuestLimit holds a guest of 1 TiB with what QEMU maps beside its memory.
	minGuestLimit = 2 << 40
)

// DefaultMemoryLimits follow the machine: a guest may have twice its memory, and 2 TiB
// in any case; all guests half of the address space, or of RLIMIT_AS; and three quarters
// of the mappings that vm.max_map_count allows a process.
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

// maxMappings is vm.max_map_count, or the kernel's default if it cannot be read.
func maxMappings() int {
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			return n
		}
	}
	return 65530
}

// MemoryPool counts what all guests of a switch have mapped. Its methods may be called
// by any goroutine.
type MemoryPool struct {
	limits MemoryLimits

	mu       sync.Mutex
	guests   map[uint32]*GuestMemory // by port
	bytes    uint64
	excess   uint64 // of bytes, beyond the guests' shares
	mappings int
	refused  uint64
}

// NewMemoryPool makes a pool of which nothing is used.
func NewMemoryPool(l MemoryLimits) *MemoryPool {
	return &MemoryPool{limits: l, guests: map[uint32]*GuestMemory{}}
}

// GuestMemory is one guest's part of the pool.
type GuestMemory struct {
	pool     *MemoryPool
	port     uint32
	bytes    uint64
	mappings int
	refused  uint64
}

// Guest is the part of the guest of a port, which has nothing mapped yet. It replaces
// the part of an earlier session of the port once that is closed.
func (p *MemoryPool) Guest(port uint32) *GuestMemory {
	g := &GuestMemory{pool: p, port: port}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.guests[port] = g
	return g
}

// MemoryUse is what a guest, or all of them, have mapped.
type MemoryUse struct {
	Port     uint32 // 0: all guests
	Bytes    uint64
	Mappings int
	Refused  uint64 // messages that asked for more
}

// Use lists all guests, and before them their sum.
func (p *MemoryPool) Use() (MemoryLimits, []MemoryUse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	use := []MemoryUse{{Bytes: p.bytes, Mappings: p.mappings, Refused: p.refused}}
	for port, g := range p.guests {
		use = append(use, MemoryUse{Port: port, Bytes: g.bytes, Mappings: g.mappings, Refused: g.refused})
	}
	return p.limits, use
}

// footprint is what mappings take of the pool. bytes stops at the largest number.
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

// resize makes the guest's part what f says. More than before may be refused.
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

// adopt is resize for what is mapped already.
func (g *GuestMemory) adopt(f footprint) {
	g.pool.mu.Lock()
	defer g.pool.mu.Unlock()
	g.set(f)
}

// check tells whether the part may be as large as f. Caller holds mu.
func (g *GuestMemory) check(f footprint) error {
	p, l := g.pool, &g.pool.limits
	switch {
	case f.bytes > l.Guest:
		return fmt.Errorf("memory of %d bytes in all, a guest may have %d mapped (weftd --guest-memory-gib)", f.bytes, l.Guest)
	case f.bytes > l.Share && p.excess-l.beyondShare(g.bytes)+l.beyondShare(f.bytes) > l.All-l.Share*port.MaxPorts:
		return fmt.Errorf("memory of %d bytes in all, other guests have %d of the %d that all may have mapped", f.bytes, p.bytes-g.bytes, l.All)
	case p.mappings-g.mappings+f.mappings > l.Mappings:
		return fmt.Errorf("%d memory mappings, other guests have %d of the %d that all may have (vm.max_map_count)", f.mappings, p.mappings-g.mappings, l.Mappings)
	}
	return nil
}

// beyondShare is the part of n bytes that a share does not hold.
func (l *MemoryLimits) beyondShare(n uint64) uint64 { return n - min(n, l.Share) }

func (g *GuestMemory) set(f footprint) {
	p := g.pool
	p.bytes += f.bytes - g.bytes
	p.excess += p.limits.beyondShare(f.bytes) - p.limits.beyondShare(g.bytes)
	p.mappings += f.mappings - g.mappings
	g.bytes, g.mappings = f.bytes, f.mappings
}

// close gives the part back, and has the pool forget the guest.
func (g *GuestMemory) close() {
	p := g.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	g.set(footprint{})
	if p.guests[g.port] == g {
		delete(p.guests, g.port)
	}
}

// footprint is what a device of the front end has mapped.
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

// reserve takes what the device will have mapped after a change of the front end's
// state, before anything is changed.
func (s *Session) reserve(change func(f *frontEnd)) error {
	next := s.front.clone()
	change(&next)
	return s.memory.resize(next.footprint())
}
