// SPDX-License-Identifier: Apache-2.0

package xsk

import "fmt"

// Attached returns false if the XDP program is no longer attached to the device. The device may be gone, or
// an administrator may have detached the program. If the kernel does not tell, Attached returns true.
func (u *Uplink) Attached() bool {
	info, err := u.link.Info()
	return err != nil || info.XDP() == nil || info.XDP().Ifindex != 0
}

// SetMTU stores a new MTU of the device, in bytes without the Ethernet header. Afterwards the engine process
// must open the uplink again, with the new Spec. SetMTU refuses an MTU whose frames do not fit into UMEM
// frames.
func (u *Uplink) SetMTU(mtu int) error {
	if most := u.spec.maxMTU(); mtu > most {
		return tooLarge(u.spec.Dev, mtu, u.spec.FrameSize, most)
	}
	u.spec.MTU = mtu
	return nil
}

func tooLarge(dev string, mtu, frame, limit int) error {
	what := fmt.Sprintf("one frame: MTU %d, a frame of %d bytes takes", mtu, frame)
	if limit == maxPiecesMTU {
		what = fmt.Sprintf("several frames: MTU %d, they take", mtu)
	}
	return fmt.Errorf("af_xdp on %s: MTU too large for %s up to %d (ip link set dev %s mtu %d)", dev, what, limit, dev, limit)
}
