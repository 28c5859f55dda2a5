// SPDX-License-Identifier: Apache-2.0

package porttest

import (
	"encoding/json"

	"weft/packet"
	"weft/port"

	"golang.org/x/sys/unix"
)

// Device is a port.Device in memory: the test reads and writes its frames.
type Device struct {
	RxQueues []*Rx
	TxQueues []*Tx
	Saved    json.RawMessage // result of State
	Closed   bool
}

// New returns a device with n receive and n transmit queues.
func New(n int, o Options) *Device {
	d := &Device{}
	for range n {
		d.RxQueues = append(d.RxQueues, NewRx(o))
		d.TxQueues = append(d.TxQueues, NewTx(o))
	}
	return d
}

// Rx implements port.Device. A queue with Options.Counted is a port.Counted.
func (d *Device) Rx() []port.Rx {
	var all []port.Rx
	for _, r := range d.RxQueues {
		if r.o.Counted {
			all = append(all, countedRx{r})
		} else {
			all = append(all, r)
		}
	}
	return all
}

// Tx implements port.Device.
func (d *Device) Tx() []port.Tx {
	var all []port.Tx
	for _, t := range d.TxQueues {
		all = append(all, t)
	}
	return all
}

// State implements port.Device. It returns Saved.
func (d *Device) State() []byte { return d.Saved }

// Close implements port.Device. It closes all queues.
func (d *Device) Close() {
	d.Closed = true
	for _, r := range d.RxQueues {
		r.Close()
	}
	for _, t := range d.TxQueues {
		t.Close()
	}
}

// address returns the address of the first byte of b. b is mapped memory outside the
// Go heap.
func address(b []byte) uintptr { return packet.Address(b) }

func closeFD(fd int) { unix.Close(fd) }
