package tap

import (
	"golang.org/x/sys/unix"

	"weft/packet"
)

// Offload bits of TUNSETOFFLOAD (include/uapi/linux/if_tun.h): what the kernel may
// leave undone of frames that we read.
const (
	tunCsum   = 0x01
	tunTSO4   = 0x02
	tunTSO6   = 0x04
	tunTSOECN = 0x08
	tunUSO4   = 0x20 // both from Linux 6.2
	tunUSO6   = 0x40

	tunTSO = tunCsum | tunTSO4 | tunTSO6 | tunTSOECN
	tunUSO = tunUSO4 | tunUSO6
)

// setOffloads has frames of the tap carry a virtio-net header of VnetLen bytes, and
// asks the kernel for everything it has. It returns what that is; the kernel takes
// the same from us.
func setOffloads(fd int) (packet.Offloads, error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, packet.VnetLen); err != nil {
		return 0, err
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunTSO|tunUSO); err == nil {
		return packet.TakesAll, nil
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunTSO); err != nil {
		return 0, err
	}
	return packet.TakesAll &^ packet.TakesUDP, nil
}
