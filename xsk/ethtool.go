// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"unsafe"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// withEthtool calls do with a handle for ethtool requests in the caller's network namespace.
func withEthtool(do func(*ethtool.Ethtool) error) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	return do(tool)
}

// channels returns the numbers of receive and transmit queues that a device uses.
func channels(tool *ethtool.Ethtool, dev string) (rx, tx int, err error) {
	c, err := tool.GetChannels(dev)
	return int(c.CombinedCount + c.RxCount), int(c.CombinedCount + c.TxCount), err
}

// This file reads and writes RSS tables itself, for two reasons. The library's table has 256 entries,
// but devices have up to 2,048 (ice). And the library writes only equal or weighted tables, so it
// cannot restore a saved one.

// Commands of include/uapi/linux/ethtool.h.
const (
	ethtoolGetRSS = 0x38
	ethtoolSetRSS = 0x39
	// maxIndirection is the largest number of entries of an RSS indirection table. A
	// longer table is an error.
	maxIndirection = 4096
)

// ethtoolIndirection is struct ethtool_rxfh_indir of include/uapi/linux/ethtool.h.
type ethtoolIndirection struct {
	cmd, size uint32
	queue     [maxIndirection]uint32
}

func (t *ethtoolIndirection) do(dev string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var req struct { // struct ifreq (include/uapi/linux/if.h)
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], dev)
	req.data = unsafe.Pointer(t)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return errno
	}
	return nil
}

// getIndirection returns the RSS table of a device. Entry i is the receive queue for frames whose hash
// is i, modulo the number of entries.
func getIndirection(dev string) ([]uint32, error) {
	t := ethtoolIndirection{cmd: ethtoolGetRSS}
	if err := t.do(dev); err != nil {
		return nil, err
	}
	if t.size == 0 || t.size > maxIndirection {
		return nil, unix.EOPNOTSUPP
	}
	if err := t.do(dev); err != nil {
		return nil, err
	}
	return append([]uint32(nil), t.queue[:t.size]...), nil
}

func setIndirection(dev string, queues []uint32) error {
	t := ethtoolIndirection{cmd: ethtoolSetRSS, size: uint32(len(queues))}
	copy(t.queue[:], queues)
	return t.do(dev)
}
