package tap

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/port"
)

// device is an opened tap: one receive and one transmit queue a descriptor.
type device struct {
	fds []int
	rx  []port.Rx
	tx  []port.Tx
}

// Open opens the queues of a tap from what Tap.Spec and Tap.FDs gave: one
// descriptor a queue. It owns the descriptors, also when it fails.
func Open(text []byte, fds []int) (port.Device, error) {
	d := &device{fds: fds}
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
		d.rx = append(d.rx, rx)
		tx, err := newTx(fd, s)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("tap %s: %w", s.Dev, err)
		}
		d.tx = append(d.tx, tx)
	}
	return d, nil
}

// Rx and Tx: queue i of both is descriptor i; the two may be different workers'.
func (d *device) Rx() []port.Rx { return d.rx }
func (d *device) Tx() []port.Tx { return d.tx }

// State is nil: what waits, waits in the kernel.
func (d *device) State() []byte { return nil }

// Close closes queues and descriptors, which both directions share.
func (d *device) Close() {
	for _, q := range d.rx {
		q.Close()
	}
	for _, q := range d.tx {
		q.Close()
	}
	for _, fd := range d.fds {
		unix.Close(fd)
	}
	d.rx, d.tx, d.fds = nil, nil, nil
}
