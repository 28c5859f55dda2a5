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
	family, err := netlink.GenlFamilyGet(netdevFamily)
	if err != nil {
		return false, fmt.Errorf("features of %s: %w", dev, err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), 0)
	// The library sends four bytes from the address of its header, which has only two.
	// The kernel requires the other two to be zero.
	header := struct {
		nl.Genlmsg
		_ uint16
	}{Genlmsg: nl.Genlmsg{Command: netdevGet, Version: 1}}
	request.AddData(&header.Genlmsg)
	request.AddData(nl.NewRtAttr(netdevIfindex, nl.Uint32Attr(uint32(link.Attrs().Index))))
	replies, err := request.Execute(unix.NETLINK_GENERIC, 0)
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
