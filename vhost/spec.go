// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"fmt"
)

// DeviceSpec tells the engine how to open a guest's device. Control makes it from the
// front end's messages. Descriptors are indexes into the list that goes with it.
type DeviceSpec struct {
	Regions  []RegionSpec `json:"regions"`
	Vrings   []VringSpec  `json:"vrings"`
	Features uint64       `json:"features"` // negotiated virtio features
	// MTU is the guest's MTU in bytes, without the Ethernet header; 0: limited only
	// by the guest's buffers.
	MTU int `json:"mtu,omitempty"`
	// Resume continues where a killed engine stopped. The positions come from the
	// used index in guest memory and from the record; LastAvail is ignored. The
	// switch completes chains in order. It publishes a chain, or counts it in the
	// record, only when it has finished with it, so every chain beyond these
	// positions still has to be handled.
	Resume bool `json:"resume,omitempty"`
	// Log is the dirty log of the pages that the switch writes; Size 0: no log.
	Log LogSpec `json:"log"`
	// Inflight is the front end's inflight buffer; Size 0: none.
	Inflight InflightSpec `json:"inflight"`
	// Announce is a MAC address. The device, once it is opened, broadcasts a RARP
	// request for it as if the guest had sent one (SEND_RARP after a migration).
	Announce []byte `json:"announce,omitempty"`
	// Record is the index of the record's descriptor plus 1; 0: no record. Without a
	// record a packed ring cannot be resumed, and a split ring retains no used
	// chains.
	Record int `json:"record,omitempty"`
}

// RegionSpec is one region of guest memory.
type RegionSpec struct {
	GuestAddr  uint64 `json:"guest_addr"`
	UserAddr   uint64 `json:"user_addr"` // address in the front end; ring addresses are of this kind
	Size       uint64 `json:"size"`
	MmapOffset uint64 `json:"mmap_offset"`
	FD         int    `json:"fd"`

	span uint64 // bytes of address space that the mapping takes; 0: not checked yet
}

// VringSpec is one ring; the features tell whether it is split or packed. The guest
// receives on rings of even index and transmits on rings of odd index (virtio 1.2
// section 5.1.2).
type VringSpec struct {
	Index     int    `json:"index"`
	Num       int    `json:"num"`
	Desc      uint64 `json:"desc"`       // user addresses, as Avail and Used
	Avail     uint64 `json:"avail"`      // packed: the driver area
	Used      uint64 `json:"used"`       // packed: the device area
	LastAvail uint16 `json:"last_avail"` // packed: 15 bits of position, and the wrap counter in bit 15
	Kick      int    `json:"kick"`       // -1: none, the switch polls the ring
	Call      int    `json:"call"`       // -1: none, the guest polls the ring
	Enabled   bool   `json:"enabled"`
}

// DeviceState is the JSON that Device.State returns.
type DeviceState struct {
	Vrings []VringState `json:"vrings"`
}

// VringState is the position at which a ring stopped, for GET_VRING_BASE.
type VringState struct {
	Index     int    `json:"index"`
	LastAvail uint16 `json:"last_avail"`
}

// checkRegions refuses tables that are empty or too long, and regions that are empty,
// wrap around or overlap.
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

// checkVring refuses an index, a size or an alignment that no ring can have (virtio
// 1.2 sections 2.7 and 2.8).
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
