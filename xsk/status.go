// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Status is the state of an uplink for the operator.
type Status struct {
	Dev    string `json:"dev"`
	Index  int    `json:"ifindex"`
	Driver string `json:"driver"`
	MTU    int    `json:"mtu"`
	// Mode is the mode in use. Refused lists the better modes that did not work, each with the reason.
	Mode    string    `json:"mode"`
	Refused []Refusal `json:"refused,omitempty"`
	// Endpoints lists the tunnel endpoints whose datagrams the XDP program redirects,
	// sorted, as in 192.0.2.1:4789 or "gre to 192.0.2.1".
	Endpoints []string      `json:"endpoints"`
	Queues    []QueueStatus `json:"queues"`
	// Notes are remarks for the operator about device settings that could be better.
	Notes []string `json:"notes,omitempty"`
}

// QueueStatus is the state of one queue's socket.
type QueueStatus struct {
	Queue    int  `json:"queue"`
	ZeroCopy bool `json:"zero_copy"` // as the kernel reports it (XDP_OPTIONS)
	Sends    bool `json:"sends"`
	// Counters of the kernel since the socket was made (XDP_STATISTICS).
	RxDropped     uint64 `json:"rx_dropped"`      // lost frames: too long, or no UMEM frame was free
	RxRingFull    uint64 `json:"rx_ring_full"`    // frames lost because the rx ring was full
	RxFillEmpty   uint64 `json:"rx_fill_empty"`   // number of times when the fill ring was empty
	RxInvalid     uint64 `json:"rx_invalid"`      // bad addresses on the fill ring
	TxInvalid     uint64 `json:"tx_invalid"`      // bad descriptors on the tx ring
	TxRingEmpty   uint64 `json:"tx_ring_empty"`   // number of system calls that found the tx ring empty
	FramesSending int    `json:"frames_sending"`  // sending frames not completed yet
	Error         string `json:"error,omitempty"` // why the socket did not answer
}

// Status returns the state of the uplink. It reads the kernel's counters of the sockets, and the XDP
// program's map of endpoints.
func (u *Uplink) Status() Status {
	s := Status{
		Dev: u.spec.Dev, Index: u.ifindex, Driver: u.driver, MTU: u.spec.MTU, Mode: u.mode, Refused: u.refused,
		Endpoints: []string{},
	}
	endpoints, err := u.currentEndpoints()
	if err != nil {
		s.Notes = append(s.Notes, err.Error())
	}
	for k := range endpoints {
		s.Endpoints = append(s.Endpoints, k.String())
	}
	slices.Sort(s.Endpoints)
	s.Endpoints = slices.Compact(s.Endpoints) // GRE has several keys
	if !u.Attached() {
		s.Notes = append(s.Notes, "the device is gone, or the program was detached from it: delete the port and add it again")
	}
	memory, _ := u.spec.carve(u.region.Bytes())
	for i, fd := range u.sockets {
		q := queueStatus(i, fd)
		q.Sends = i < u.spec.TxQueues
		for _, mark := range memory[i].marks {
			q.FramesSending += int(mark)
		}
		s.Queues = append(s.Queues, q)
	}
	if left := u.deviceQueues - u.spec.Queues; left > 0 && !u.steered {
		s.Notes = append(s.Notes, fmt.Sprintf("%d of the device's %d queues are not served: tunnel traffic on them goes to the kernel (ethtool -L %s combined %d, or serve them all)",
			left, u.deviceQueues, u.spec.Dev, u.spec.Queues))
	}
	if u.spec.TxQueues < u.spec.Queues {
		s.Notes = append(s.Notes, fmt.Sprintf("the device sends on %d queues and receives on %d", u.spec.TxQueues, u.spec.Queues))
	}
	for _, c := range u.settings {
		s.Notes = append(s.Notes, "the port has changed "+c.Name+" of the device; deleting the port restores it")
	}
	return s
}

func queueStatus(queue, fd int) QueueStatus {
	q := QueueStatus{Queue: queue}
	options, err := unix.GetsockoptInt(fd, unix.SOL_XDP, unix.XDP_OPTIONS)
	if err != nil {
		q.Error = err.Error()
		return q
	}
	q.ZeroCopy = options&unix.XDP_OPTIONS_ZEROCOPY != 0
	st, err := statistics(fd)
	if err != nil {
		q.Error = err.Error()
		return q
	}
	q.RxDropped, q.RxRingFull, q.RxFillEmpty = st.Rx_dropped, st.Rx_ring_full, st.Rx_fill_ring_empty_descs
	q.RxInvalid, q.TxInvalid, q.TxRingEmpty = st.Rx_invalid_descs, st.Tx_invalid_descs, st.Tx_ring_empty_descs
	return q
}
