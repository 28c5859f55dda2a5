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

// OffersZeroCopy reports whether the driver of a device offers AF_XDP zero-copy. Even
// then, the kernel may refuse this mode in Setup. OffersZeroCopy returns an error if
// the kernel gives no answer.
func OffersZeroCopy(dev string) (bool, error) {
	link, err := netlink.LinkByName(dev)
	if err != nil {
		return false, fmt.Errorf("features of %s: %w", dev, err)
	}
	family, err := netdevID()
	if err != nil {
		return false, fmt.Errorf("features of %s: %w", dev, err)
	}
	replies, err := askGeneric(family, netdevGet, 1, nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(link.Attrs().Index))))
	if err != nil {
		return false, fmt.Errorf("features of %s: %w", dev, err)
	}
	for _, reply := range replies {
		attrs, err := nl.ParseRouteAttr(reply[min(nl.SizeofGenlmsg, len(reply)):])
		if err != nil {
			return false, fmt.Errorf("features of %s: %w", dev, err)
		}
		for _, a := range attrs {
			if a.Attr.Type == netdevXDPFeatures && len(a.Value) == 8 {
				return nl.NativeEndian().Uint64(a.Value)&zeroCopyFeature != 0, nil
			}
		}
	}
	return false, fmt.Errorf("features of %s: the kernel's reply has none", dev)
}

// netdevID returns the number of the family netdev. netlink.GenlFamilyGet would read two bytes behind
// its header.
func netdevID() (int, error) {
	replies, err := askGeneric(nl.GENL_ID_CTRL, nl.GENL_CTRL_CMD_GETFAMILY, nl.GENL_CTRL_VERSION,
		nl.NewRtAttr(nl.GENL_CTRL_ATTR_FAMILY_NAME, nl.ZeroTerminated(netdevFamily)))
	if err != nil {
		return 0, err
	}
	for _, reply := range replies {
		attrs, err := nl.ParseRouteAttr(reply[min(nl.SizeofGenlmsg, len(reply)):])
		if err != nil {
			return 0, err
		}
		for _, a := range attrs {
			if a.Attr.Type == nl.GENL_CTRL_ATTR_FAMILY_ID && len(a.Value) == 2 {
				return int(nl.NativeEndian().Uint16(a.Value)), nil
			}
		}
	}
	return 0, fmt.Errorf("the kernel's reply has no number of the family %s", netdevFamily)
}

// askGeneric sends a request with one attribute to a generic netlink family, and returns the replies.
func askGeneric(family int, command, version uint8, attr *nl.RtAttr) ([][]byte, error) {
	request := nl.NewNetlinkRequest(family, 0)
	// The library sends four bytes from the address of its header, which has only two.
	// The kernel requires the other two to be zero.
	header := struct {
		nl.Genlmsg
		_ uint16
	}{Genlmsg: nl.Genlmsg{Command: command, Version: version}}
	request.AddData(&header.Genlmsg)
	request.AddData(attr)
	return request.Execute(unix.NETLINK_GENERIC, 0)
}
