package tap

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/port"
)

// Open opens the queues of a tap from what Tap.Spec and Tap.FDs gave: queue i of both
// directions is descriptor i, and the two may be different workers'. It owns the
// descriptors, also when it fails.
func Open(text []byte, fds []int) (port.Device, error) {
	d := &port.Queues{FDs: fds}
	s, err := parseSpec(text, fds)
	if err != nil {
		d.Close()
		return nil, err
	}
	for _, fd := range fds {
		// The open file is shared with control's duplicate, and so is this flag.
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
