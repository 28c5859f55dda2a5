// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
)

// DeviceSpec tells the engine how to open a guest's device. The control process makes
// it from the front end's messages. Each descriptor field is an index into a list of
// descriptors that is passed with the DeviceSpec.
type DeviceSpec struct {
	Regions  []RegionSpec `json:"regions"`
	Vrings   []VringSpec  `json:"vrings"`
	Features uint64       `json:"features"` // negotiated virtio features
	// MTU is the guest's MTU in bytes, without the Ethernet header; 0: limited only
	// by the guest's buffers.
	MTU int `json:"mtu,omitempty"`
	// Resume makes the device continue where a killed engine has stopped. The ring positions come from the
	// used index in guest memory and from the record. LastAvail counts only for a packed ring without a
	// record and without an inflight buffer.
	Resume bool `json:"resume,omitempty"`
	// Log is the dirty log of the pages that the switch writes; Size 0: no log.
	Log LogSpec `json:"log"`
	// Inflight is the inflight buffer, which the front end keeps; Size 0: no buffer.
	Inflight InflightSpec `json:"inflight"`
	// Announce is the guest's MAC address after a migration (SEND_RARP). When the device opens, the switch
	// receives a RARP request with this source address from it. nil: no announcement.
	Announce []byte `json:"announce,omitempty"`
	// Record is 1 + the index of the record's descriptor; 0: no record. Without a
	// record the next engine cannot resume a packed ring.
	Record int `json:"record,omitempty"`
}

// RegionSpec is one region of guest memory.
type RegionSpec struct {
	GuestAddr  uint64 `json:"guest_addr"`
	UserAddr   uint64 `json:"user_addr"` // address in the front end's address space, like all ring addresses
	Size       uint64 `json:"size"`
	MmapOffset uint64 `json:"mmap_offset"`
	FD         int    `json:"fd"`

	span uint64 // size of the mapping in bytes; 0: not computed yet
}

// VringSpec describes one ring. The device's features decide whether its layout is
// split or packed. The guest receives on rings of even index and transmits on rings of
// odd index (virtio 1.2 section 5.1.2).
type VringSpec struct {
	Index     int    `json:"index"`
	Num       int    `json:"num"`
	Desc      uint64 `json:"desc"`       // Desc, Avail and Used are user addresses
	Avail     uint64 `json:"avail"`      // driver area of a packed ring
	Used      uint64 `json:"used"`       // device area of a packed ring
	LastAvail uint16 `json:"last_avail"` // next avail index; in a packed ring 15 bits of index and the wrap counter
	Kick      int    `json:"kick"`       // index of the kick descriptor; -1: the switch polls
	Call      int    `json:"call"`       // index of the call descriptor; -1: the guest polls
	Enabled   bool   `json:"enabled"`
}

// DeviceState is the state of a stopped device, which Device.State returns in JSON.
type DeviceState struct {
	Vrings []VringState `json:"vrings"`
}

// VringState is the position at which a ring has stopped, as GET_VRING_BASE returns it.
type VringState struct {
	Index     int    `json:"index"`
	LastAvail uint16 `json:"last_avail"`
}

// checkRegions refuses a memory table that is empty or too long, and regions that are
// empty, wrap around or overlap.
func checkRegions(regions []RegionSpec) error {
	if len(regions) == 0 || len(regions) > MaxRegions {
		return fmt.Errorf("memory table of %d regions, expected 1 to %d", len(regions), MaxRegions)
	}
	for i, r := range regions {
		if r.Size == 0 || r.GuestAddr+r.Size < r.GuestAddr || r.UserAddr+r.Size < r.UserAddr || r.MmapOffset+r.Size < r.MmapOffset {
			return fmt.Errorf("memory region %d: size %#x at guest address %#x, user address %#x, offset %#x is empty or wraps around",
				i, r.Size, r.GuestAddr, r.UserAddr, r.MmapOffset)
		}
		for j, o := range regions[:i] {
			if overlap(r.GuestAddr, o.GuestAddr, r.Size, o.Size) || overlap(r.UserAddr, o.UserAddr, r.Size, o.Size) {
				return fmt.Errorf("memory region %d overlaps region %d", i, j)
			}
		}
	}
	return nil
}

func overlap(a, b, aSize, bSize uint64) bool { return a < b+bSize && b < a+aSize }

// checkVring refuses a ring whose index, size or alignment is invalid (virtio 1.2
// sections 2.7 and 2.8).
func checkVring(v VringSpec, features uint64) error {
	availAlign, usedAlign := uint64(availAlign), uint64(usedAlign)
	if features&FeatureRingPacked != 0 {
		availAlign, usedAlign = packedAreaAlign, packedAreaAlign
	}
	switch {
	case v.Index < 0 || v.Index >= 2*MaxQueuePairs:
		return fmt.Errorf("vring %d: expected an index below %d", v.Index, 2*MaxQueuePairs)
	case v.Num < 1 || v.Num > MaxRingSize || v.Num&(v.Num-1) != 0 && features&FeatureRingPacked == 0:
		return fmt.Errorf("vring %d: %d descriptors, expected a power of two up to %d", v.Index, v.Num, MaxRingSize)
	case v.Desc%descAlign != 0 || v.Avail%availAlign != 0 || v.Used%usedAlign != 0:
		return fmt.Errorf("vring %d: descriptors %#x, avail %#x, used %#x are not aligned to %d, %d, %d",
			v.Index, v.Desc, v.Avail, v.Used, descAlign, availAlign, usedAlign)
	}
	return nil
}
