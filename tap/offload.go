// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/packet"
)

// Offload bits of TUNSETOFFLOAD (include/uapi/linux/if_tun.h).
const (
	tunCsum   = 0x01
	tunTSO4   = 0x02
	tunTSO6   = 0x04
	tunTSOECN = 0x08
	tunUSO4   = 0x20 // tunUSO4 and tunUSO6 need Linux 6.2
	tunUSO6   = 0x40

	tunTSO = tunCsum | tunTSO4 | tunTSO6 | tunTSOECN
	tunUSO = tunUSO4 | tunUSO6
)

// setOffloads adds a virtio-net header to the tap's frames and turns on every offload that the kernel
// supports. It returns these offloads, which frames of both directions may use.
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
	// trainBytes is the largest UDP payload in bytes, over IPv6, of a train: datagrams that an uplink
	// sends with one system call (package afpacket). tunnelBytes is the size in bytes of the VXLAN
	// header, the Ethernet header and a VLAN tag of a tunnelled IP packet.
	trainBytes  = 65535 - 40 - 8
	tunnelBytes = 8 + 14 + 4
	// headerBytes is the length of TCP with timestamps over IPv4. tcpReserve is the number of bytes of
	// gso_max_size that Linux reserves for headers (sk_setup_caps, MAX_TCP_HEADER).
	headerBytes = 20 + 32
	tcpReserve  = 320 + 1
)

// limitLarge limits the size of the large frames that the kernel sends to the tap. The segments of such a
// frame, with the headers of a tunnel, then fit into one train, which an uplink sends with one system call.
// If the kernel has no such limit, limitLarge changes nothing.
func limitLarge(h *netlink.Handle, dev string, mtu int) {
	link, err := h.LinkByName(dev)
	if err != nil || mtu <= headerBytes {
		return
	}
	segments := trainBytes / (mtu + tunnelBytes)
	limit := (segments*2+1)*(mtu-headerBytes)/2 + tcpReserve // half a segment more, because other headers may be longer
	_ = h.LinkSetGSOMaxSize(link, min(limit, 65536))
	_ = h.LinkSetGSOIPv4MaxSize(link, min(limit, 65536))
}
