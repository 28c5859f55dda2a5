// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The feeder is a private tap through which large frames with tunnel headers are sent. The virtio-net header
// of a packet socket has no fields for the tunnel; the virtio-net header of a tap has them from Linux 6.17
// on. The feeder is used for devices that segment tunnelled frames in hardware, and for devices that pass on
// large frames unsegmented, such as a veth. The engine process writes such a frame into the feeder, and a BPF
// program redirects it to the device.

// feederOffloads is the argument of TUNSETOFFLOAD (include/uapi/linux/if_tun.h) for
// the feeder: all offloads, also in UDP tunnels.
const feederOffloads = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80 | 0x100

// Features of devices that segment tunnelled frames, as in ethtool -k.
const (
	cutsTunnels      = "tx-udp_tnl-segmentation"
	cutsTunnelsSumed = "tx-udp_tnl-csum-segmentation"
	manglesID        = "tx-tcp-mangleid-segmentation"
)

// idManglers are drivers that announce the feature cutsTunnels, but leave the segmentation of TCP over IPv4
// in tunnels to the kernel unless the feature manglesID is on. It is off by default (igb_features_check,
// ixgbe_features_check and similar functions in Linux 6.18).
var idManglers = []string{"igb", "igbvf", "igc", "ixgbe", "ixgbevf"}

// openFeeder makes the feeder (the tap for large tunnelled frames) of a device. The
// error is the reason why the device can have no feeder.
func openFeeder(dev string, ifindex int) (fd int, err error) {
	if err := segmentsTunnels(dev); err != nil {
		return -1, err
	}
	if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return -1, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	if err = setUpFeeder(fd, fmt.Sprint("weft", ifindex), ifindex); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// segmentsTunnels returns an error if the device does not segment tunnelled frames itself. The kernel would
// then segment them, which is slower than a train of datagrams.
func segmentsTunnels(dev string) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	features, err := tool.Features(dev)
	if err != nil {
		return fmt.Errorf("features of the device: %w", err)
	}
	driver, err := tool.DriverName(dev)
	if err != nil {
		return fmt.Errorf("driver of the device: %w", err)
	}
	return refusesTunnels(driver, features)
}

// refusesTunnels returns an error with the reason why a device does not segment tunnelled frames
// itself. It returns nil if the device does. driver and features are as in ethtool -i and ethtool -k.
func refusesTunnels(driver string, features map[string]bool) error {
	for _, name := range []string{cutsTunnels, cutsTunnelsSumed} {
		if !features[name] {
			return fmt.Errorf("the device has no %s", name)
		}
	}
	if slices.Contains(idManglers, driver) && !features[manglesID] {
		return fmt.Errorf("driver %s segments no IPv4 in tunnels without %s", driver, manglesID)
	}
	return nil
}

func setUpFeeder(fd int, name string, ifindex int) error {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("tap %s: %w", name, err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, tunnelVnetLen); err != nil {
		return fmt.Errorf("tap %s: header of tunnels: %w", name, err)
	}
	err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, feederOffloads)
	if errors.Is(err, unix.EINVAL) {
		return errors.New("large frames in tunnels need Linux 6.17 or later")
	}
	if err != nil {
		return fmt.Errorf("tap %s: offloads: %w", name, err)
	}
	// The feeder needs no IPv6 of the host. A kernel without IPv6 lacks this file.
	err = os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("tap %s: %w", name, err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("tap %s: %w", name, err)
	}
	if err := redirect(link, ifindex); err != nil {
		return fmt.Errorf("tap %s: %w", name, err)
	}
	if err := errors.Join(netlink.LinkSetARPOff(link), netlink.LinkSetUp(link)); err != nil {
		return fmt.Errorf("tap %s: bring up: %w", name, err)
	}
	return nil
}

// redirect installs a BPF filter that sends every frame received on link out of the
// device ifindex. The filter exists as long as the tap.
func redirect(link netlink.Link, ifindex int) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "MIT", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(ifindex)),
		asm.Mov.Imm(asm.R2, 0), // flags: egress
		asm.FnRedirect.Call(),
		asm.Return(),
	}})
	if err != nil {
		return fmt.Errorf("program: %w", err)
	}
	defer program.Close()
	attrs := netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	if err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: "clsact"}); err != nil {
		return fmt.Errorf("clsact: %w", err)
	}
	err = netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs:  netlink.FilterAttrs{LinkIndex: attrs.LinkIndex, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:           program.FD(),
		Name:         "weft_feeder",
		DirectAction: true,
	})
	if err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	return nil
}
