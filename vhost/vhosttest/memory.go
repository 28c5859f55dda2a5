// SPDX-License-Identifier: Apache-2.0

// Package vhosttest is the guest's side of vhost for tests and benchmarks. It has a
// simulated driver with its own memory, a front end that speaks the vhost-user
// protocol, attacks that a correct driver never makes, and a load generator.
//
// The package does not use the switch's ring code, so that each of the two checks the
// other. It follows the sections of virtio 1.2 about drivers.
package vhosttest

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/vhost"
)

// GuestBase is the address of the first byte of guest memory for the guest's driver. UserBase is its
// address in the front end's process. Guest address 0 is not mapped.
const (
	GuestBase uint64 = 0x4000_0000
	UserBase  uint64 = 0x7f12_0000_0000
)

// HeaderLen returns the length in bytes of the virtio-net header with these features.
func HeaderLen(features uint64) int {
	if features&(vhost.FeatureMergeable|vhost.FeatureVersion1) != 0 {
		return 12
	}
	return 10
}

// Layout selects how a chain is divided into descriptors.
type Layout int

const (
	// OneDescriptor puts the virtio-net header and the frame into one descriptor.
	OneDescriptor Layout = iota
	// HeaderApart puts the virtio-net header into its own descriptor.
	HeaderApart
	// Scattered divides a chain into pieces of odd sizes. The virtio-net header alone
	// has two pieces.
	Scattered
)

// Layouts lists all layouts, for tests that try each of them.
var Layouts = []Layout{OneDescriptor, HeaderApart, Scattered}

func (l Layout) String() string { return [...]string{"one", "header-apart", "scattered"}[l] }

const maxPieces = 6

// cuts returns the sizes of all pieces of a chain except the last; 0 ends the list. header is the
// length of the virtio-net header in bytes.
func (l Layout) cuts(header int) (cuts [maxPieces]int) {
	switch l {
	case HeaderApart:
		cuts[0] = header
	case Scattered:
		cuts = [maxPieces]int{5, header - 5 + 3, 61, 7, 200}
	}
	return cuts
}

// pieces divides a chain of n bytes, which begins with the virtio-net header. It
// returns the sizes of the pieces and their number.
func (l Layout) pieces(n, header int) (sizes [maxPieces]int, count int) {
	for _, c := range l.cuts(header) {
		if c == 0 || c >= n {
			break
		}
		sizes[count] = c
		count, n = count+1, n-c
	}
	sizes[count] = n
	return sizes, count + 1
}

// Options describe a guest. The zero value means one queue pair, rings of 256
// descriptors, no features, and a polling driver.
type Options struct {
	Pairs    int    // number of queue pairs; 1 if 0
	Num      int    // ring size; 256 if 0
	Features uint64 // negotiated features
	BufLen   int    // size of a buffer in bytes, virtio-net header included; 2048 if 0
	Layout   Layout
	Indirect bool // put chains into indirect tables; needs FeatureIndirect in Features
	// Interrupts gives the rings call eventfds. Without Interrupts the driver polls.
	Interrupts bool
	// SplitRegions divides guest memory into several regions. Their borders cut some
	// buffers in two.
	SplitRegions bool
	// Inflight makes the device store the ring state in an inflight buffer
	// (INFLIGHT_SHMFD) instead of the switch's record.
	Inflight bool
	// HugePages takes guest memory from the kernel's pool of 2 MiB pages, which must
	// be large enough.
	HugePages bool
	// Seed is the initial value of the ring indexes, such as 65530 for a test of their overflow.
	Seed uint16
}

func (o Options) withDefaults() Options {
	if o.Pairs == 0 {
		o.Pairs = 1
	}
	if o.Num == 0 {
		o.Num = 256
	}
	if o.BufLen == 0 {
		o.BufLen = 2048
	}
	return o
}

// Guest is a guest's memory with its rings. At most one goroutine drives each queue.
type Guest struct {
	Options
	Rx, Tx []*Queue // queues by pair: the guest receives on Rx and transmits on Tx
	mem    []byte
	file   *os.File
	record int // descriptor of the record in which the switch stores ring positions; -1: none
	// borders has the offsets in mem at which the memory regions begin, and the end of mem.
	borders []int
	// inflight is the descriptor of the inflight buffer (INFLIGHT_SHMFD); -1: none.
	inflight     int
	inflightSpec vhost.InflightSpec
}

// HugePage is the page size of guests with Options.HugePages, in bytes.
const HugePage = 2 << 20

// New makes a guest and fills its receive rings with buffers.
func New(o Options) (*Guest, error) {
	o = o.withDefaults()
	g := &Guest{Options: o, record: -1, inflight: -1}
	queue := queueSize(o)
	size := 2 * o.Pairs * queue
	flags := unix.MFD_CLOEXEC
	if o.HugePages {
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
		size = (size + HugePage - 1) &^ (HugePage - 1)
	}
	fd, err := unix.MemfdCreate("weft-mock-guest", flags)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	g.file = os.NewFile(uintptr(fd), "guest memory")
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		g.Close()
		return nil, fmt.Errorf("guest memory of %d bytes: %w", size, err)
	}
	if g.mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		g.Close()
		return nil, fmt.Errorf("map guest memory: %w", err)
	}
	g.borders = []int{0, size}
	if o.SplitRegions {
		// Each border lies inside a buffer, one of the first queue and one of the second, so
		// that the switch meets frames that span two regions.
		half := o.BufLen*o.Num/2 + 4096 + 5
		g.borders = []int{0, queue - half, 2*queue - half, size}
	}
	if !o.Inflight {
		if g.record, err = vhost.NewRecord(o.Pairs); err != nil {
			g.Close()
			return nil, err
		}
	}
	for i := range 2 * o.Pairs {
		q, err := newQueue(g, i, i*queue)
		if err != nil {
			g.Close()
			return nil, err
		}
		if i%2 == 0 {
			g.Rx = append(g.Rx, q)
			q.fillReceive()
		} else {
			g.Tx = append(g.Tx, q)
		}
	}
	return g, nil
}

// Close unmaps guest memory and closes all descriptors of the guest.
func (g *Guest) Close() {
	for _, q := range append(append([]*Queue{}, g.Rx...), g.Tx...) {
		q.close()
	}
	if g.mem != nil {
		_ = unix.Munmap(g.mem)
		g.mem = nil
	}
	g.file.Close()
	for _, fd := range []*int{&g.record, &g.inflight} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
}

// Truncate shortens the file of guest memory, as a hostile front end may.
func (g *Guest) Truncate(size int64) error { return unix.Ftruncate(g.FD(), size) }

// FD returns the descriptor of the file of guest memory. The guest owns the descriptor and closes it in
// Close.
func (g *Guest) FD() int { return int(g.file.Fd()) }

// Regions returns the guest's memory table. FD is 0 in each entry.
func (g *Guest) Regions() []vhost.RegionSpec {
	var regions []vhost.RegionSpec
	for i, from := range g.borders[:len(g.borders)-1] {
		to := g.borders[i+1]
		// User addresses have gaps, as in a QEMU with several memory back ends.
		regions = append(regions, vhost.RegionSpec{GuestAddr: GuestBase + uint64(from), UserAddr: g.userAddr(from),
			Size: uint64(to - from), MmapOffset: uint64(from)})
	}
	return regions
}

func (g *Guest) userAddr(offset int) uint64 {
	for i := range g.borders[:len(g.borders)-1] {
		if offset < g.borders[i+1] {
			return UserBase + uint64(i)<<36 + uint64(offset)
		}
	}
	return UserBase
}

// Spec returns the specification of the guest's device for vhost.Open, with duplicates
// of its descriptors. vhost.Open takes ownership of the duplicates.
func (g *Guest) Spec() (vhost.DeviceSpec, []int, error) {
	s := vhost.DeviceSpec{Regions: g.Regions(), Features: g.Features}
	fds := []int{g.FD()}
	if g.record >= 0 {
		fds = append(fds, g.record)
		s.Record = len(fds)
	}
	if g.Options.Inflight {
		if err := g.makeInflight(); err != nil {
			return s, nil, err
		}
		s.Inflight = g.inflightSpec
		s.Inflight.FD, fds = len(fds), append(fds, g.inflight)
	}
	for i := range g.Rx {
		for _, q := range []*Queue{g.Rx[i], g.Tx[i]} {
			v := q.Vring()
			v.Kick, fds = len(fds), append(fds, q.kick)
			if q.call >= 0 {
				v.Call, fds = len(fds), append(fds, q.call)
			}
			s.Vrings = append(s.Vrings, v)
		}
	}
	for i, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			for _, fd := range fds[:i] {
				unix.Close(fd)
			}
			return s, nil, fmt.Errorf("duplicate of a guest's descriptor: %w", err)
		}
		fds[i] = dup
	}
	return s, fds, nil
}

// Open opens the guest's device in this process, without a vhost-user session. If change is not nil,
// it may modify the specification first.
func (g *Guest) Open(change func(*vhost.DeviceSpec)) (*vhost.Device, error) {
	s, fds, err := g.Spec()
	if err != nil {
		return nil, err
	}
	if change != nil {
		change(&s)
	}
	return open(s, fds)
}

// OpenLogged opens the guest's device with a dirty log of size bytes in the file fd.
func (g *Guest) OpenLogged(fd int, size uint64) (*vhost.Device, error) {
	s, fds, err := g.Spec()
	if err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	s.Log = vhost.LogSpec{Size: size, FD: len(fds)}
	return open(s, append(fds, dup))
}

func open(s vhost.DeviceSpec, fds []int) (*vhost.Device, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	d, err := vhost.Open(text, fds)
	if err != nil {
		return nil, err
	}
	return d.(*vhost.Device), nil
}

// newEvent makes an eventfd with the flags that QEMU uses.
var newEvent = shm.NewEvent

// Bytes returns n bytes of guest memory at a guest address. It returns false if any
// of the bytes is outside of guest memory.
func (g *Guest) Bytes(addr, n uint64) ([]byte, bool) {
	off := addr - GuestBase
	if addr < GuestBase || off > uint64(len(g.mem)) || n > uint64(len(g.mem))-off {
		return nil, false
	}
	return g.mem[off : off+n : off+n], true
}
