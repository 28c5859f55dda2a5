// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DeviceState is the state of a network device in the kernel.
type DeviceState struct {
	Index, MTU  int
	up, carrier bool
}

// Device asks the kernel for the state of a device. Kernel's own copy of the state may be older, because
// only events update it. ok is false if there is no such device.
func (k *Kernel) Device(name string) (s DeviceState, ok bool, err error) {
	l, err := k.handle.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return s, false, nil
	}
	if err != nil {
		return s, false, err
	}
	a := l.Attrs()
	return DeviceState{
		Index: a.Index, MTU: a.MTU, up: a.Flags&net.FlagUp != 0, carrier: a.RawFlags&unix.IFF_LOWER_UP != 0,
	}, true, nil
}

// Trouble returns the reason why device dev does not forward, or "".
func (s DeviceState) Trouble(dev string) string {
	switch {
	case !s.up:
		return "device " + dev + " is down"
	case !s.carrier:
		return "device " + dev + " has no carrier"
	}
	return ""
}
