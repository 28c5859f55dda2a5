// SPDX-License-Identifier: Apache-2.0

package xsk

import "fmt"

// Changes of a device while an uplink is set up on it.

// Attached reports whether the XDP program is still on the device. It is gone if the
// device is gone or if an administrator has removed the program.
func (u *Uplink) Attached() bool {
	info, err := u.link.Info()
	return err != nil || info.XDP() == nil || info.XDP().Ifindex != 0
}

// SetMTU records a new MTU of the device, in bytes without the Ethernet header. The
// sockets and the XDP program stay. The engine must open the uplink again with the
// new Spec. SetMTU refuses an MTU that the frame size does not allow.
func (u *Uplink) SetMTU(mtu int) error {
	if most := u.spec.maxMTU(); mtu > most {
		return tooLarge(u.spec.Dev, mtu, u.spec.FrameSize, most)
	}
	u.spec.MTU = mtu
	return nil
}

func tooLarge(dev string, mtu, frame, most int) error {
	what := fmt.Sprintf("one frame: MTU %d, a frame of %d bytes takes", mtu, frame)
	if most == maxPiecesMTU {
		what = fmt.Sprintf("several frames: MTU %d, they take", mtu)
	}
	return fmt.Errorf("af_xdp on %s: MTU too large for %s up to %d (ip link set dev %s mtu %d)", dev, what, most, dev, most)
}
