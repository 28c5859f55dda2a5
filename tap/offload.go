package tap

import (
	"github.com/vishvananda/netlink"
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

const (
	// trainBytes is what a train of datagrams holds (see afpacket): a UDP datagram's
	// payload over IPv6, and tunnelBytes what a tunnel adds to an IP packet there:
	// VXLAN, Ethernet and a tag.
	trainBytes  = 65535 - 40 - 8
	tunnelBytes = 8 + 14 + 4
	// headerBytes are the headers of TCP over IPv4 with timestamps; tcpReserve is
	// what Linux takes off the limit for headers (sk_setup_caps, MAX_TCP_HEADER).
	headerBytes = 20 + 32
	tcpReserve  = 320 + 1
)

// limitLarge has the kernel make large frames of no more segments than go through a
// tunnel in one train: the last few would make a second one, which costs as much. A
// kernel that does not know the limit goes on without.
func limitLarge(h *netlink.Handle, dev string, mtu int) {
	link, err := h.LinkByName(dev)
	if err != nil || mtu <= headerBytes {
		return
	}
	segments := trainBytes / (mtu + tunnelBytes)
	limit := (segments*2+1)*(mtu-headerBytes)/2 + tcpReserve // half a segment more, for other headers
	_ = h.LinkSetGSOMaxSize(link, min(limit, 65536))
	_ = h.LinkSetGSOIPv4MaxSize(link, min(limit, 65536))
}
