// SPDX-License-Identifier: Apache-2.0

// Package vhosttest is the guest's side of vhost for tests and benchmarks. It has a
// mock driver with its own memory, a front end that speaks the vhost-user protocol,
// attacks that no correct driver makes, and a load generator.
//
// The package does not use the switch's ring code. It is written from the driver's
// sections of virtio 1.2, so that the two implementations check each other.
package vhosttest

import (
	"encoding/json"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/vhost"
)

// Base addresses of the guest's memory in the guest and in its front end. Guest
// address 0 is not mapped.
const (
	GuestBase uint64 = 0x4000_0000
	UserBase  uint64 = 0x7f12_0000_0000
)

// HeaderLen returns the length in bytes of the virtio-net header for the features.
func HeaderLen(features uint64) int {
	if features&(vhost.FeatureMergeable|vhost.FeatureVersion1) != 0 {
		return 12
	}
	return 10
}

// Layout selects the division of a chain into descriptors.
type Layout int

const (
	// OneDescriptor: one descriptor holds header and frame.
	OneDescriptor Layout = iota
	// HeaderApart: the header has its own descriptor.
	HeaderApart
	// Scattered: pieces of odd sizes; the header itself is in two pieces.
	Scattered
)

// Layouts has all layouts.
var Layouts = []Layout{OneDescriptor, HeaderApart, Scattered}

func (l Layout) String() string { return [...]string{"one", "header-apart", "scattered"}[l] }

const maxPieces = 6

// cuts returns the ends of the first pieces of a chain, given the header's length.
// The rest is one piece.
func (l Layout) cuts(header int) (cuts [maxPieces]int) {
	switch l {
	case HeaderApart:
		cuts[0] = header
	case Scattered:
		cuts = [maxPieces]int{5, header - 5 + 3, 61, 7, 200}
	}
	return cuts
}

// pieces divides n bytes, which begin with the virtio-net header, into pieces and
// returns their sizes and number.
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

// Options describe a guest. The zero value means one queue pair of 256 descriptors,
// no features, and a polling driver.
type Options struct {
	Pairs    int    // number of queue pairs; 1 if 0
	Num      int    // ring size; 256 if 0
	Features uint64 // negotiated features
	BufLen   int    // bytes of a buffer, header included; 2048 if 0
	Layout   Layout
	Indirect bool // put chains into indirect tables; Features must include it
	// Interrupts gives the rings call descriptors. Without it the driver polls.
	Interrupts bool
	// SplitRegions divides the memory into regions whose borders are inside buffers.
	SplitRegions bool
	// Inflight makes the device record the rings' state in the buffer of
	// INFLIGHT_SHMFD instead of the switch's own record.
	Inflight bool
	// HugePages takes the memory from the pool of 2 MiB pages, which must be large
	// enough.
	HugePages bool
	// Seed is the initial value of the ring indexes.
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

// Guest is a guest's memory with its rings. One goroutine drives each queue.
type Guest struct {
	Options
	Rx, Tx []*Queue // queues by pair: Rx the guest receives from, Tx it transmits on
	mem    []byte
	file   *os.File
	record int // descriptor of control's record; -1: none
	// offsets of the regions' borders in mem
	borders []int
	// descriptor of the buffer of INFLIGHT_SHMFD, if there is one
	inflight     int
	inflightSpec vhost.InflightSpec
}

// HugePage is the page size of Options.HugePages in bytes.
const HugePage = 2 << 20

// New makes a guest whose receive rings are filled with buffers.
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
		// The borders are in the middle of the first and the second queue's buffers.
		half := o.BufLen*o.Num/2 + 4096 + 5
		g.borders = []int{0, queue - half, 2*queue - half, size}
	}
	if !o.Inflight {
		if g.record, err = vhost.NewRecord(); err != nil {
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

// Close frees memory and descriptors.
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

// Truncate shortens the memory's file, as a hostile front end may.
func (g *Guest) Truncate(size int64) error { return unix.Ftruncate(g.FD(), size) }

// FD returns the descriptor of the guest's memory; the guest owns it.
func (g *Guest) FD() int { return int(g.file.Fd()) }

// Regions returns the memory table. FD is 0 in each entry.
func (g *Guest) Regions() []vhost.RegionSpec {
	var regions []vhost.RegionSpec
	for i, from := range g.borders[:len(g.borders)-1] {
		to := g.borders[i+1]
		// User addresses have gaps, as with several memory backends of QEMU.
		regions = append(regions, vhost.RegionSpec{GuestAddr: GuestBase + uint64(from), UserAddr: g.userAddr(from),
			Size: uint64(to - from), MmapOffset: uint64(from)})
	}
	return regions
}

func (g *Guest) userAddr(off int) uint64 {
	for i := range g.borders[:len(g.borders)-1] {
		if off < g.borders[i+1] {
			return UserBase + uint64(i)<<36 + uint64(off)
		}
	}
	return UserBase
}

// Spec returns the guest's specification for vhost.Open and duplicates of the
// descriptors, which Open will own.
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

// Open opens the guest's device directly, without a session. change may alter the
// specification; nil leaves it.
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

// OpenLogged opens the device with the dirty log in the file fd of size bytes.
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

// newEvent makes an eventfd like QEMU's.
var newEvent = shm.NewEvent

// Bytes returns n bytes of guest memory at a guest address, and false if any of them
// is outside.
func (g *Guest) Bytes(addr, n uint64) ([]byte, bool) {
	off := addr - GuestBase
	if addr < GuestBase || off > uint64(len(g.mem)) || n > uint64(len(g.mem))-off {
		return nil, false
	}
	return g.mem[off : off+n : off+n], true
}
