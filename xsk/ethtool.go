// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of include/uapi/linux/ethtool.h.
const (
	ethtoolGetRSS      = 0x38
	ethtoolSetRSS      = 0x39
	ethtoolGetChannels = 0x3c
	ethtoolSetChannels = 0x3d
	// maxIndirection is the largest number of entries of an RSS indirection table. A
	// longer table is an error.
	maxIndirection = 4096
)

// ethtoolChannels is struct ethtool_channels.
type ethtoolChannels struct {
	cmd                                    uint32
	maxRx, maxTx, maxOther, maxCombined    uint32
	rxCount, txCount, otherCount, combined uint32
}

// ethtoolIndirection is struct ethtool_rxfh_indir.
type ethtoolIndirection struct {
	cmd, size uint32
	queue     [maxIndirection]uint32
}

// ethtool executes an ethtool command on a device. fd is any socket in the device's
// namespace.
func ethtool(fd int, dev string, command unsafe.Pointer) error {
	var req struct { // struct ifreq (include/uapi/linux/if.h)
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(req.name[:unix.IFNAMSIZ-1], dev)
	req.data = command
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return errno
	}
	return nil
}

// getChannels returns the current and the maximum numbers of a device's queues.
func getChannels(fd int, dev string) (ethtoolChannels, error) {
	c := ethtoolChannels{cmd: ethtoolGetChannels}
	return c, ethtool(fd, dev, unsafe.Pointer(&c))
}

func (c *ethtoolChannels) rx() int { return int(c.combined + c.rxCount) }
func (c *ethtoolChannels) tx() int { return int(c.combined + c.txCount) }

func (c *ethtoolChannels) set(fd int, dev string) error {
	c.cmd = ethtoolSetChannels
	return ethtool(fd, dev, unsafe.Pointer(c))
}

// getIndirection returns the RSS table: the receive queue for each hash value.
func getIndirection(fd int, dev string) ([]uint32, error) {
	t := ethtoolIndirection{cmd: ethtoolGetRSS}
	if err := ethtool(fd, dev, unsafe.Pointer(&t)); err != nil {
		return nil, err
	}
	if t.size == 0 || t.size > maxIndirection {
		return nil, unix.EOPNOTSUPP
	}
	if err := ethtool(fd, dev, unsafe.Pointer(&t)); err != nil {
		return nil, err
	}
	return append([]uint32(nil), t.queue[:t.size]...), nil
}

func setIndirection(fd int, dev string, queues []uint32) error {
	t := ethtoolIndirection{cmd: ethtoolSetRSS, size: uint32(len(queues))}
	copy(t.queue[:], queues)
	return ethtool(fd, dev, unsafe.Pointer(&t))
}
