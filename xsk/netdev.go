package xsk

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netdev is what set-up has to know of the device.
type netdev struct {
	name   string
	index  int
	mtu    int
	driver string // as ethtool -i says; the link's type if the driver does not
	rx, tx int    // queues in use
	// program is the id of the XDP program that is attached, 0 if none.
	program uint32
}

// inspect asks the kernel about a device of the current network namespace.
func inspect(dev string) (*netdev, error) {
	link, err := netlink.LinkByName(dev)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("af_xdp: no network device %q", dev)
	}
	if err != nil {
		return nil, fmt.Errorf("af_xdp on %s: %w", dev, err)
	}
	a := link.Attrs()
	n := &netdev{name: a.Name, index: a.Index, mtu: a.MTU, driver: link.Type(), rx: a.NumRxQueues, tx: a.NumTxQueues}
	if a.Xdp != nil && a.Xdp.Attached {
		n.program = a.Xdp.ProgId
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("af_xdp on %s: socket: %w", dev, err)
	}
	defer unix.Close(fd)
	if info, err := unix.IoctlGetEthtoolDrvinfo(fd, a.Name); err == nil {
		if d := unix.ByteSliceToString(info.Driver[:]); d != "" {
			n.driver = d
		}
	}
	// Drivers without channels have as many queues as were allocated.
	if rx, tx, err := channels(fd, a.Name); err == nil && rx > 0 && tx > 0 {
		n.rx, n.tx = rx, tx
	}
	return n, nil
}

// check refuses what no mode can do.
func (n *netdev) check(cfg *Config) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("af_xdp on %s: %s", n.name, fmt.Sprintf(format, args...))
	}
	if cfg.Queues > n.rx {
		return fail("too few queues: %d asked for, the device has %d (ethtool -L %s combined %d, or ask for fewer)",
			cfg.Queues, n.rx, n.name, cfg.Queues)
	}
	if most := maxMTU(cfg.FrameSize); n.mtu > most {
		return fail("MTU too large for one frame: MTU %d, a frame of %d bytes takes up to %d (ip link set dev %s mtu %d)",
			n.mtu, cfg.FrameSize, most, n.name, most)
	}
	if n.program != 0 {
		return fail("another XDP program is attached: %s; detach it first (ip link set dev %s xdp off)",
			describeProgram(n.program), n.name)
	}
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
