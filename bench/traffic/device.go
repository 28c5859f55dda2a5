// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// device is a transport over a packet socket on a network device.
type device struct {
	*socket
	*framer
	mac net.HardwareAddr
}

// deviceBuffer is the size of the receive buffer in bytes.
const deviceBuffer = 16 << 20

func openDevice(name string, s *Spec) (link, error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return nil, CheckLink(name)
	}
	switch {
	case dev.Flags&net.FlagUp == 0:
		return nil, fmt.Errorf("%s is down", name)
	case s.Sizes.largest()-14 > dev.MTU:
		return nil, fmt.Errorf("frames of %d bytes do not fit %s, whose MTU is %d", s.Sizes.largest(), name, dev.MTU)
	case len(dev.HardwareAddr) != 6:
		return nil, fmt.Errorf("%s is no Ethernet device", name)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("raw frames on %s: %w (they need CAP_NET_RAW)", name, err)
	}
	buffer := s.SocketBuffer
	if buffer == 0 {
		buffer = deviceBuffer
	}
	// The socket is bound last, because it receives frames from then on.
	for _, step := range []func() error{
		func() error { return setBuffers(fd, buffer) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1) },
		func() error {
			return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_IP), Ifindex: dev.Index})
		},
	} {
		if err := step(); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("raw frames on %s: %w", name, err)
		}
	}
	return &device{socket: newSocket(fd, s.largestFrame()), mac: dev.HardwareAddr}, nil
}

func (d *device) address() net.HardwareAddr { return d.mac }

func (d *device) towards(peer net.HardwareAddr, server bool, flows int) {
	d.framer = newFramer(d.mac, peer, server, flows)
}

func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
