package vhost

import (
	"fmt"
)

// DeviceSpec says how the engine opens a guest's device. Control makes it from
// what the front end has sent; descriptors are indexes into the list sent along.
type DeviceSpec struct {
	Regions  []RegionSpec `json:"regions"`
	Vrings   []VringSpec  `json:"vrings"`
	Features uint64       `json:"features"` // negotiated virtio features
	// MTU is the guest's, Ethernet header not included; 0: whatever its buffers
	// hold.
	MTU int `json:"mtu,omitempty"`
	// Resume goes on where another engine was killed: LastAvail is ignored and
	// taken from the used index in guest memory and from the record. The switch
	// completes chains in order and publishes them, or says in the record that it may,
	// only when it is through with them, so that what lies beyond was never dealt with.
	Resume bool `json:"resume,omitempty"`
	// Log has the pages marked that the switch writes; Size 0: they are not.
	Log LogSpec `json:"log"`
	// Inflight is the front end's account of the rings; Size 0: none.
	Inflight InflightSpec `json:"inflight"`
	// Announce is a MAC address for which the device broadcasts a RARP request, as
	// if the guest had sent it, once it is opened (SEND_RARP after a move).
	Announce []byte `json:"announce,omitempty"`
	// Record is one more than the place of the record's descriptor; 0: none, and
	// packed rings cannot be resumed, while split ones are shown all at once.
	Record int `json:"record,omitempty"`
}

// RegionSpec is one region of guest memory.
type RegionSpec struct {
	GuestAddr  uint64 `json:"guest_addr"`
	UserAddr   uint64 `json:"user_addr"` // in the front end's address space; ring addresses refer to it
	Size       uint64 `json:"size"`
	MmapOffset uint64 `json:"mmap_offset"`
	FD         int    `json:"fd"`

	span uint64 // bytes of address space that the mapping takes; 0: checkFile was not called
}

// VringSpec is one ring, split or packed as the features say. Even indexes receive (for the guest), odd ones
// transmit (virtio 1.2 section 5.1.2).
type VringSpec struct {
	Index     int    `json:"index"`
	Num       int    `json:"num"`
	Desc      uint64 `json:"desc"`       // user addresses
	Avail     uint64 `json:"avail"`      // packed: the driver area
	Used      uint64 `json:"used"`       // packed: the device area
	LastAvail uint16 `json:"last_avail"` // packed: place, and the wrap counter in bit 15
	Kick      int    `json:"kick"`       // -1: none, the guest is polled
	Call      int    `json:"call"`       // -1: none, the guest polls
	Enabled   bool   `json:"enabled"`
}

// DeviceState is what Device.State returns, in JSON.
type DeviceState struct {
	Vrings []VringState `json:"vrings"`
}

// VringState tells where a ring stopped, for GET_VRING_BASE.
type VringState struct {
	Index     int    `json:"index"`
	LastAvail uint16 `json:"last_avail"`
}

// checkRegions refuses tables that are empty, too long, wrap around or overlap.
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

// checkVring refuses what no ring can be (virtio 1.2 sections 2.7 and 2.8).
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
