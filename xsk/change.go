package xsk

import "fmt"

// What the kernel may do to a device that an uplink is set up on.

// Attached tells whether the program is on the device still: a device that goes
// takes it along, and an administrator may force it off.
func (u *Uplink) Attached() bool {
	info, err := u.link.Info()
	return err != nil || info.XDP() == nil || info.XDP().Ifindex != 0
}

// SetMTU notes that the device has another MTU in bytes, without Ethernet
// header. Sockets and program stay; the engine is to open the uplink again, with
// the Spec that follows from it. An MTU that no frame takes is refused.
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
