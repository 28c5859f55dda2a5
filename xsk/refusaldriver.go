// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// This file explains error numbers of drivers. The causes come from Linux's sources: ixgbe_xdp_setup
// (ixgbe_main.c), igb_xdp_setup (igb_main.c), virtnet_xsk_pool_enable (virtio_net.c).

// explainDriver returns the cause of an error number that a known driver returned, and what to do
// about it. It returns "" if it does not know the cause.
func explainDriver(failed step, mode string, n *netdev, errno unix.Errno) string {
	switch {
	case n.driver == "ixgbe" && failed == stepAttach && errno == unix.EINVAL:
		return fmt.Sprintf("driver ixgbe refused the XDP program: it takes none with virtual functions (echo 0 >/sys/class/net/%[1]s/device/sriov_numvfs), DCB, receive coalescing (ethtool -K %[1]s lro off), or an MTU larger than one receive buffer (it is %[2]d)",
			n.name, n.mtu)
	case n.driver == "ixgbe" && failed == stepAttach && errno == unix.ENOMEM:
		return "driver ixgbe refused the XDP program: it takes none on a machine of more than 128 processors (boot with nr_cpus=128)"
	case n.driver == "igb" && failed == stepAttach && errno == unix.EINVAL:
		return fmt.Sprintf("driver igb refused the XDP program: the MTU (%d) is larger than one receive buffer (ip link set dev %s mtu 1500)", n.mtu, n.name)
	case n.driver == "igb" && failed == stepBind && errno == unix.EOPNOTSUPP && mode == ModeZeroCopy:
		return "driver igb has AF_XDP zero-copy from Linux 6.14: copy mode works on older ones"
	case n.driver == "virtio_net" && failed == stepBind && errno == unix.EINVAL && mode == ModeZeroCopy:
		return fmt.Sprintf("virtio_net has zero-copy only on a device that offers VIRTIO_F_ACCESS_PLATFORM: have the hypervisor offer it to %s (QEMU: iommu_platform=on)", n.name)
	}
	return ""
}
