package port

import "golang.org/x/sys/unix"

// Queues is the Device of a back end whose queues hold everything else: nothing is
// kept for a later Open but what lies in the kernel or in memory that is passed on.
type Queues struct {
	// FDs are the descriptors both directions share. Close closes them.
	FDs []int

	rx []Rx
	tx []Tx
}

// AddRx appends a receive queue, which is d's from then on.
func (d *Queues) AddRx(q Rx) { d.rx = append(d.rx, q) }

// AddTx appends a transmit queue, which is d's from then on.
func (d *Queues) AddTx(q Tx) { d.tx = append(d.tx, q) }

// Rx and Tx in the order in which they were added.
func (d *Queues) Rx() []Rx { return d.rx }
func (d *Queues) Tx() []Tx { return d.tx }

// State is nil.
func (d *Queues) State() []byte { return nil }

// Close closes the queues, then the descriptors. A second call does nothing.
func (d *Queues) Close() {
	for _, q := range d.rx {
		q.Close()
	}
	for _, q := range d.tx {
		q.Close()
	}
	for _, fd := range d.FDs {
		unix.Close(fd)
	}
	d.rx, d.tx, d.FDs = nil, nil, nil
}
