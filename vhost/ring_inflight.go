// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The inflight buffer is the shared memory of INFLIGHT_SHMFD (vhost-user, "Inflight
// I/O tracking"). A back end stores in it the ring state that the next back end
// needs. The front end keeps the buffer, so the state survives even if all processes
// of the switch die.
//
// For a split ring the used index is enough, because chains are completed in order. The switch never
// marks a descriptor of a split ring as in flight. If another kind of back end has marked descriptors,
// the switch returns them to the driver unused.
//
// For a packed ring the buffer has the same state as the record (ring_record.go): the
// position, and the used elements while they are being written.

// InflightSpec describes an inflight buffer, the shared memory in which a back end stores the state of the
// rings. Size 0: no buffer.
type InflightSpec struct {
	Size      uint64 `json:"size"`
	Offset    uint64 `json:"offset"`
	Queues    int    `json:"queues"`     // number of vrings
	QueueSize int    `json:"queue_size"` // number of descriptors of each vring
	FD        int    `json:"fd"`
}

// Layout of one queue's region in the inflight buffer, in bytes: a header, and an entry
// for each descriptor. Split and packed rings have different layouts.
const (
	inflightVersion = 1
	inflightAlign   = 64 // alignment of a queue's region

	flightVersion = 8 // offset in both headers, u16
	flightNum     = 10

	splitHeader  = 16
	splitEntry   = 16
	splitUsedIdx = 14
	// offset of the 64-bit counter in an entry of a split ring. The first byte of an entry is the
	// in-flight mark.
	splitCounter = 8

	flightHeader     = 32 // size of a packed ring's header
	flightEntry      = 32
	flightUsed       = 16 // u16
	flightOldUsed    = 18
	flightWrap       = 20 // u8
	flightOldWrap    = 21
	flightEntryNum   = 6 // offset in an entry, u16
	flightEntryCount = 8 // u64
	flightEntryID    = 16
	flightEntryLen   = 20 // u32
)

// inflightRegion returns the size of one queue's region in bytes.
func inflightRegion(num int, packed bool) int {
	size := splitHeader + splitEntry*num
	if packed {
		size = flightHeader + flightEntry*num
	}
	return (size + inflightAlign - 1) &^ (inflightAlign - 1)
}

// checkInflight refuses an inflight buffer with a wrong file, size or number of
// rings.
func checkInflight(s InflightSpec, fd int) error {
	if s.Queues < 1 || s.Queues > 2*MaxQueuePairs || s.QueueSize < 1 || s.QueueSize > MaxRingSize {
		return fmt.Errorf("inflight buffer of %d rings of %d descriptors, expected 1 to %d rings of 1 to %d descriptors", s.Queues, s.QueueSize, 2*MaxQueuePairs, MaxRingSize)
	}
	if s.Offset%uint64(unix.Getpagesize()) != 0 || s.Size < uint64(s.Queues*inflightRegion(s.QueueSize, false)) || s.Size > uint64(s.Queues*inflightRegion(s.QueueSize, true))+1<<20 || s.Offset+s.Size < s.Offset {
		return fmt.Errorf("inflight buffer of %d bytes at offset %d for %d rings of %d descriptors", s.Size, s.Offset, s.Queues, s.QueueSize)
	}
	_, _, err := checkFile(RegionSpec{Size: s.Size, MmapOffset: s.Offset}, fd)
	return err
}

// parseInflight decodes the payload "inflight description" of a message.
func parseInflight(b []byte) InflightSpec {
	return InflightSpec{Size: binary.LittleEndian.Uint64(b), Offset: binary.LittleEndian.Uint64(b[8:]),
		Queues: int(binary.LittleEndian.Uint16(b[16:])), QueueSize: int(binary.LittleEndian.Uint16(b[18:]))}
}

// getInflightFD makes an inflight buffer and returns its description. The front end
// sends the buffer back with SET_INFLIGHT_FD.
func getInflightFD(s *Session, m *message) ([]byte, error) {
	spec := parseInflight(m.payload)
	if spec.Queues < 1 || spec.Queues > 2*s.cfg.Queues || spec.QueueSize < 1 || spec.QueueSize > MaxRingSize {
		return nil, fmt.Errorf("%d rings of %d descriptors, expected at most %d rings of %d descriptors", spec.Queues, spec.QueueSize, 2*s.cfg.Queues, MaxRingSize)
	}
	spec.Size = uint64(spec.Queues * inflightRegion(spec.QueueSize, s.front.Features&FeatureRingPacked != 0))
	fd, err := unix.MemfdCreate("inflight", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("inflight buffer: %w", err)
	}
	m.send = fd
	if err := unix.Ftruncate(fd, int64(spec.Size)); err != nil {
		return nil, fmt.Errorf("inflight buffer of %d bytes: %w", spec.Size, err)
	}
	b := binary.LittleEndian.AppendUint64(nil, spec.Size)
	b = append(b, m.payload[8:]...)
	clear(b[8:16]) // the offset in the answer is 0
	return b, nil
}

func setInflightFD(s *Session, m *message) ([]byte, error) {
	if len(m.fds) != 1 {
		return nil, fmt.Errorf("%d descriptors, expected 1", len(m.fds))
	}
	spec := parseInflight(m.payload)
	if err := checkInflight(spec, m.fds[0]); err != nil {
		return nil, err
	}
	if err := s.reserve(func(f *frontEnd) { f.Inflight = spec }); err != nil {
		return nil, err
	}
	s.halt()
	s.change(func(f *frontEnd) {
		f.dropInflight()
		spec.FD = m.takeFD(0)
		f.Inflight = spec
	})
	return nil, nil
}

// inflight is a device's inflight buffer, mapped into the engine; nil: no buffer.
type inflight struct {
	spec   InflightSpec
	mapped []byte
}

func openInflight(s InflightSpec, fds []int) (*inflight, error) {
	if s.Size == 0 {
		return nil, nil
	}
	if s.FD < 0 || s.FD >= len(fds) {
		return nil, fmt.Errorf("inflight buffer: descriptor %d of %d", s.FD, len(fds))
	}
	if err := checkInflight(s, fds[s.FD]); err != nil {
		return nil, err
	}
	mapped, err := unix.Mmap(fds[s.FD], int64(s.Offset), int(s.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("inflight buffer: map %d bytes: %w", s.Size, err)
	}
	return &inflight{spec: s, mapped: mapped}, nil
}

func (f *inflight) close() {
	if f != nil {
		_ = unix.Munmap(f.mapped)
	}
}

// inflightRing is one ring's region of the inflight buffer. The worker owns it.
type inflightRing struct {
	base   unsafe.Pointer
	num    int
	marked int // number of entries marked
}

// vring returns a ring's region of the inflight buffer; nil: the buffer has no region for this ring.
func (f *inflight) vring(v VringSpec, packed bool) (*inflightRing, error) {
	if f == nil || v.Index >= f.spec.Queues {
		return nil, nil
	}
	size := inflightRegion(f.spec.QueueSize, packed)
	if v.Num > f.spec.QueueSize || (v.Index+1)*size > len(f.mapped) {
		return nil, fmt.Errorf("inflight buffer of %d bytes for rings of %d descriptors is too small for %d", len(f.mapped), f.spec.QueueSize, v.Num)
	}
	return &inflightRing{base: unsafe.Pointer(&f.mapped[v.Index*size]), num: v.Num}, nil
}

func (f *inflightRing) u8(offset int) *uint8   { return (*uint8)(unsafe.Add(f.base, offset)) }
func (f *inflightRing) u16(offset int) *uint16 { return (*uint16)(unsafe.Add(f.base, offset)) }
func (f *inflightRing) u32(offset int) *uint32 { return (*uint32)(unsafe.Add(f.base, offset)) }
func (f *inflightRing) u64(offset int) *uint64 { return (*uint64)(unsafe.Add(f.base, offset)) }

// started reports whether a back end has already started the ring with this buffer.
func (f *inflightRing) started() bool { return f != nil && *f.u16(flightVersion) == inflightVersion }

func (f *inflightRing) begin() {
	*f.u16(flightNum) = uint16(f.num)
	*f.u16(flightVersion) = inflightVersion
}

// returnMarked completes the descriptors of a split ring that another back end has marked as in
// flight, in the order of their counters. That back end had taken them from the avail ring, so the
// switch would never find them there.
func (r *ring) returnMarked() {
	f := r.flight
	type marked struct {
		counter uint64
		id      uint32
	}
	var left []marked
	var used []bool
	if f.started() {
		used = r.usedSince(*f.u16(splitUsedIdx))
	}
	for id := range used {
		at := splitHeader + splitEntry*id
		// A descriptor may be marked although it is used already: the previous back end may have died
		// before it cleared the mark.
		if *f.u8(at) == 1 && !used[id] {
			left = append(left, marked{*f.u64(at + splitCounter), uint32(id)})
		}
		*f.u8(at) = 0
	}
	slices.SortFunc(left, func(a, b marked) int { return int(int64(a.counter - b.counter)) })
	for _, m := range left {
		r.take(m.id, 0)
	}
	if len(left) > 0 {
		r.publishSplit(r.usedCount)
	}
	f.begin()
	*f.u16(splitUsedIdx) = r.published
}

// usedSince reports which descriptors are in the used elements from index knownIndex to the used
// index. It reads at most one ring length, each element once, because the front end may write the ring
// at any time.
func (r *ring) usedSince(knownIndex uint16) []bool {
	used := make([]bool, r.num)
	if uint32(r.published-knownIndex) > r.num {
		return used
	}
	for i := knownIndex; i != r.published; i++ {
		if id := uint32(r.element(i)); id < r.num {
			used[id] = true
		}
	}
	return used
}

func (f *inflightRing) position(idx, wrap int) uint16 {
	at := *f.u16(idx) &^ packedWrap
	if *f.u8(wrap) != 0 {
		at |= packedWrap
	}
	return at
}

func (f *inflightRing) setPosition(idx, wrap int, pos uint16) {
	*f.u8(wrap) = uint8(pos >> 15)
	*f.u16(idx) = pos &^ packedWrap
}

// startPacked clears all in-flight marks and stores the position of a packed ring, which is the argument
// "first".
func (f *inflightRing) startPacked(first uint16) {
	for i := range f.num {
		*f.u8(flightHeader + flightEntry*i) = 0
	}
	f.setPosition(flightUsed, flightWrap, first)
	f.setPosition(flightOldUsed, flightOldWrap, first)
	f.begin()
}

// resumeInflight sets the position of a packed ring from the inflight buffer. If the last back end has died
// during a publish, resumeInflight finishes the publish. The method finishPublish does the same with the
// record.
func (r *ring) resumeInflight() error {
	f := r.flight
	r.first = f.position(flightOldUsed, flightOldWrap)
	end := f.position(flightUsed, flightWrap)
	if uint32(r.first&^packedWrap) >= r.num || uint32(end&^packedWrap) >= r.num {
		return fmt.Errorf("position %d or %d in a ring of %d", r.first&^packedWrap, end&^packedWrap, r.num)
	}
	if end == r.first {
		return nil
	}
	if !available(*r.idFlags(r.first), r.first) {
		r.first = end // the driver has seen all elements
		return nil
	}
	after := r.first
	for i := range f.num {
		at := flightHeader + flightEntry*i
		if *f.u8(at) == 0 {
			break
		}
		count := uint32(*f.u16(at + flightEntryNum))
		if count == 0 || count > r.num {
			return fmt.Errorf("element of %d descriptors in a ring of %d", count, r.num)
		}
		r.take(uint32(*f.u16(at + flightEntryID))|count<<16, *f.u32(at + flightEntryLen))
		after = r.advance(after, count)
	}
	if r.usedCount != r.published {
		r.writeUsed()
	}
	r.first, r.published = after, r.usedCount
	return nil
}

// inflightBegin stores the used elements of a packed ring in the inflight buffer before the ring
// publishes them.
func (r *ring) inflightBegin() {
	if !r.packed {
		return
	}
	f, at := r.flight, r.first
	f.marked = 0
	for i := r.published; i != r.usedCount && f.marked < f.num; i++ { // room limits these elements to num
		e := r.element(i)
		entry := flightHeader + flightEntry*f.marked
		f.marked++
		*f.u16(entry + flightEntryNum) = uint16(e >> 16)
		*f.u64(entry + flightEntryCount) = uint64(f.marked)
		*f.u16(entry + flightEntryID) = uint16(e)
		*f.u32(entry + flightEntryLen) = uint32(e >> 32)
		*f.u8(entry) = 1
		at = r.advance(at, uint32(e>>16&0xffff))
	}
	f.setPosition(flightUsed, flightWrap, at)
}

// inflightEnd notes in the inflight buffer that the used elements which inflightBegin has stored there are
// published.
func (r *ring) inflightEnd() {
	f := r.flight
	if !r.packed {
		*f.u16(splitUsedIdx) = r.published
		return
	}
	f.setPosition(flightOldUsed, flightOldWrap, r.first)
	for i := range f.marked {
		*f.u8(flightHeader + flightEntry*i) = 0
	}
	f.marked = 0
}
