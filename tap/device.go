// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/port"
)

// Open opens the queues of a tap. text is the result of Tap.Spec, and fds are duplicates of Tap.FDs.
// Receive queue i and transmit queue i use fds[i], but different workers may own them. Open owns the
// descriptors, even if it fails.
func Open(text []byte, fds []int) (port.Device, error) {
	d := &port.Queues{FDs: fds}
	s, err := parseSpec(text, fds)
	if err != nil {
		d.Close()
		return nil, err
	}
	for i, fd := range fds[:s.Queues] {
		// The flag O_NONBLOCK belongs to the open file, so it also applies to the descriptor of the control
		// process.
		if err := unix.SetNonblock(fd, true); err != nil {
			d.Close()
			return nil, fmt.Errorf("tap %s: %w", s.Dev, err)
		}
		rx, err := openRx(fds, i, s)
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

// openRx opens receive queue i, which uses the kernel's counts if there are any.
func openRx(fds []int, i int, s spec) (port.Rx, error) {
	if s.Counted {
		return newCountedRx(fds[i], s, fds[s.Queues], i)
	}
	return newRx(fds[i], s)
}
