// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
)

// netdev is the state of a network device, as far as Setup needs it.
type netdev struct {
	name  string
	index int
	mtu   int
	// name of the driver as in ethtool -i; for a device without a driver, the type of
	// the link
	driver string
	rx, tx int // numbers of receive and of transmit queues in use
	frame  int // size in bytes of a UMEM frame
	// program is the id of the attached XDP program, 0 for none.
	program uint32
}

// inspect returns the state of a device in the current network namespace.
func inspect(dev string) (*netdev, error) {
	nl, err := netlink.LinkByName(dev)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("af_xdp: no network device %q", dev)
	}
	if err != nil {
		return nil, fmt.Errorf("af_xdp on %s: %w", dev, err)
	}
	a := nl.Attrs()
	n := &netdev{name: a.Name, index: a.Index, mtu: a.MTU, driver: nl.Type(), rx: a.NumRxQueues, tx: a.NumTxQueues}
	if a.Xdp != nil && a.Xdp.Attached {
		n.program = a.Xdp.ProgId
	}
	err = withEthtool(func(tool *ethtool.Ethtool) error {
		if driver, err := tool.DriverName(a.Name); err == nil && driver != "" {
			n.driver = driver
		}
		// A driver without channels uses all its queues.
		if rx, tx, err := channels(tool, a.Name); err == nil && rx > 0 && tx > 0 {
			n.rx, n.tx = rx, tx
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("af_xdp on %s: socket: %w", dev, err)
	}
	return n, nil
}

// pieces reports whether a frame of the device's MTU does not fit into one UMEM frame. It then takes
// several UMEM frames, called pieces.
func (n *netdev) pieces() bool { return n.frame > 0 && n.mtu > maxMTU(n.frame) }

// check returns an error if the device cannot satisfy cfg in any mode of AF_XDP.
func (n *netdev) check(cfg *Config) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("af_xdp on %s: %s", n.name, fmt.Sprintf(format, args...))
	}
	if cfg.Queues > n.rx {
		return fail("too few queues: %d asked for, the device has %d (ethtool -L %s combined %d, or ask for fewer)",
			cfg.Queues, n.rx, n.name, cfg.Queues)
	}
	if n.mtu > maxPiecesMTU {
		return tooLarge(n.name, n.mtu, cfg.FrameSize, maxPiecesMTU)
	}
	if n.program != 0 {
		return fail("another XDP program is attached: %s; detach it first (ip link set dev %s xdp off), or ask for replace=on",
			describeProgram(n.program), n.name)
	}
	return nil
}

// removeProgram detaches every XDP program from the device, even a program that another process has
// attached by a link.
func (n *netdev) removeProgram() error {
	fail := func(err error) error {
		return fmt.Errorf("af_xdp on %s: the XDP program that is attached, %s, cannot be replaced: %w", n.name, describeProgram(n.program), err)
	}
	links := new(link.Iterator)
	defer links.Close()
	for links.Next() {
		info, err := links.Link.Info()
		if err != nil || info.XDP() == nil || int(info.XDP().Ifindex) != n.index {
			continue
		}
		if err := links.Link.Detach(); err != nil {
			return fail(err)
		}
	}
	if err := links.Err(); err != nil {
		return fail(err)
	}
	dev, err := netlink.LinkByIndex(n.index)
	if err != nil {
		return fail(err)
	}
	if a := dev.Attrs(); a.Xdp != nil && a.Xdp.Attached { // the program is attached without a link
		if err := netlink.LinkSetXdpFd(dev, -1); err != nil {
			return fail(err)
		}
	}
	n.program = 0
	return nil
}

func describeProgram(id uint32) string {
	name := ""
	if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
		if info, err := p.Info(); err == nil {
			name = info.Name
		}
		p.Close()
	}
	if name == "" {
		return fmt.Sprintf("id %d", id)
	}
	return fmt.Sprintf("%s, id %d", name, id)
}
