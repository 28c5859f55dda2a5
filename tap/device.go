// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/port"
)

// Open opens the queues of a tap from the results of Tap.Spec and Tap.FDs. Receive
// queue i and transmit queue i both use descriptor i; they may belong to different
// workers. Open owns the descriptors, also if it fails.
func Open(text []byte, fds []int) (port.Device, error) {
	d := &port.Queues{FDs: fds}
	s, err := parseSpec(text, fds)
	if err != nil {
		d.Close()
		return nil, err
	}
	for _, fd := range fds {
		// The flag belongs to the open file, which control's duplicate shares.
		if err := unix.SetNonblock(fd, true); err != nil {
			d.Close()
			return nil, fmt.Errorf("tap %s: %w", s.Dev, err)
		}
		rx, err := newRx(fd, s)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("tap %s: %w", s.Dev, err)
		}
		d.AddRx(rx)
		tx, err := newTx(fd, s)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("tap %s: %w", s.Dev, err)
		}
		d.AddTx(tx)
	}
	return d, nil
}
