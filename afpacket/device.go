package afpacket

import (
	"fmt"

	"golang.org/x/sys/unix"

	"weft/port"
)

// device is an opened uplink: one receive and one transmit queue a socket.
type device struct {
	fds []int
	rx  []port.Rx
	tx  []port.Tx
}

// Open opens the queues of an uplink from what Uplink.Spec and Uplink.FDs gave. It
// owns the descriptors, also when it fails.
func Open(text []byte, fds []int) (port.Device, error) {
	d := &device{fds: fds}
	s, err := parseSpec(text, fds)
	if err != nil {
		d.Close()
		return nil, err
	}
	feeder := -1
	if s.Feeder {
		feeder = fds[s.Queues]
	}
	for _, fd := range fds[:s.Queues] {
		rx, err := newRx(fd)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("af_packet on %s: %w", s.Dev, err)
		}
		d.rx = append(d.rx, rx)
		tx, err := newTx(fd, feeder, s)
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("af_packet on %s: %w", s.Dev, err)
		}
		d.tx = append(d.tx, tx)
	}
	return d, nil
}

// Rx and Tx: queue i of both is socket i; the two may be different workers'.
func (d *device) Rx() []port.Rx { return d.rx }
func (d *device) Tx() []port.Tx { return d.tx }

// State is nil: what waits, waits in the kernel.
func (d *device) State() []byte { return nil }

// Close closes queues and descriptors.
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
