// SPDX-License-Identifier: Apache-2.0

package port

import "golang.org/x/sys/unix"

// Queues is a Device for kinds of ports whose queues need no state for the next Open.
type Queues struct {
	// FDs are descriptors that the queues use. Close closes them after the queues.
	FDs []int

	rx []Rx
	tx []Tx
}

// AddRx appends a receive queue. The Queues owns it from then on.
func (d *Queues) AddRx(q Rx) { d.rx = append(d.rx, q) }

// AddTx appends a transmit queue. The Queues owns it from then on.
func (d *Queues) AddTx(q Tx) { d.tx = append(d.tx, q) }

// Rx and Tx return the queues in the order in which they were added.
func (d *Queues) Rx() []Rx { return d.rx }
func (d *Queues) Tx() []Tx { return d.tx }

// State returns nil, because there is no state.
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
