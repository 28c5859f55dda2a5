// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"fmt"

	"weft/offload"
	"weft/port"
)

// Open opens the queues of an uplink or of a port of a device. text is the result of Uplink.Spec, and
// fds are duplicates of Uplink.FDs. Receive queue i and transmit queue i use socket i, but different
// workers may own them. Open owns the descriptors, even if it fails.
func Open(text []byte, fds []int) (port.Device, error) {
	d := &port.Queues{FDs: fds}
	s, err := parseSpec(text, fds)
	if err != nil {
		d.Close()
		return nil, err
	}
	feeder := -1
	if s.Feeder {
		feeder = fds[s.sockets()]
	}
	for i, fd := range fds[:s.sockets()] {
		rx, err := openRx(fd, i, s)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("af_packet on %s: %w", s.Dev, err)
		}
		if i == 0 && s.Offload != 0 {
			if rx, err = withCounts(rx, fds[s.fds()-offload.CountFDs:]); err != nil {
				d.Close()
				return nil, fmt.Errorf("af_packet on %s: %w", s.Dev, err)
			}
		}
		d.AddRx(rx)
		tx, err := newTx(fd, feeder, s)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("af_packet on %s: %w", s.Dev, err)
		}
		d.AddTx(tx)
	}
	return d, nil
}

// openRx opens receive queue i on its socket fd, which has a ring if i is below s.Rings.
func openRx(fd, i int, s spec) (port.Rx, error) {
	if i < s.Rings {
		return newRingRx(fd, s.Slots, s.All)
	}
	return newRx(fd)
}
