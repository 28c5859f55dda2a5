// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// The generic netlink family "netdev" (include/uapi/linux/netdev.h, Linux 6.3).
const (
	netdevFamily      = "netdev"
	netdevGet         = 1
	netdevIfindex     = 1
	netdevXDPFeatures = 3
	zeroCopyFeature   = 1 << 3 // NETDEV_XDP_ACT_XSK_ZEROCOPY
)

// OffersZeroCopy reports whether the driver of a device offers AF_XDP zero-copy. Even then, the kernel
// may refuse this mode in Setup. It returns an error if the kernel does not tell.
func OffersZeroCopy(dev string) (bool, error) {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return false, fmt.Errorf("features of %s: %w", dev, err)
	}
	family, err := askGeneric(nl.GENL_ID_CTRL, nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION,
		nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(netdevFamily)), nl.GENL_CTRL_ATTR_FAMILY_ID, 2)
	if err != nil {
		return false, fmt.Errorf("features of %s: family %s: %w", dev, netdevFamily, err)
	}
	features, err := askGeneric(int(nl.NativeEndian().Uint16(family)), netdevGet, 1,
		nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(link.Attrs().Index))), netdevXDPFeatures, 8)
	if err != nil {
		return false, fmt.Errorf("features of %s: %w", dev, err)
	}
	return nl.NativeEndian().Uint64(features)&zeroCopyFeature != 0, nil
}

// askGeneric sends a request with one attribute to a generic netlink family. It returns the value of the
// reply's attribute of type wanted, which has wantedBytes bytes.
func askGeneric(family int, command, version uint8, attr *nl.RtAttr, wanted uint16, wantedBytes int) ([]byte, error) {
	request := nl.NewNetlinkRequest(family, 0)
	// The netlink library sends four bytes from the address of its header, although the header has only
	// two. The kernel requires the other two to be zero.
	header := struct {
		nl.Genlmsg
		_ uint16
	}{Genlmsg: nl.Genlmsg{Command: command, Version: version}}
	request.AddData(&header.Genlmsg)
	request.AddData(attr)
	replies, err := request.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	for _, reply := range replies {
		attrs, err := nl.ParseRouteAttr(reply[min(nl.SizeofGenlmsg, len(reply)):])
		if err != nil {
			return nil, err
		}
		for _, a := range attrs {
			if a.Attr.Type == wanted && len(a.Value) == wantedBytes {
				return a.Value, nil
			}
		}
	}
	return nil, fmt.Errorf("the kernel's reply has no attribute %d", wanted)
}
