// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// Queues of ports, and the actions that choose one (ovs-actions(7), "Queues"). A queue is a token bucket
// that drops frames beyond its rate. A frame for a queue that the output port does not have goes through
// queue 0.

// TokenBucket is a token bucket of a port, in the datapath.
type TokenBucket struct {
	Packets bool   // Rate and Depth are in packets, otherwise in kilobits
	Rate    uint32 // per second, not 0
	Depth   uint32 // not 0
	Slot    uint32 // index of the datapath's token bucket
}

// Queue is an output queue of a port: its number and the token bucket that limits it.
type Queue struct {
	ID uint32
	TokenBucket
}

// Limits of queues. A configuration with more of them is refused.
const (
	// MaxQueues is the largest number of queues of a port.
	MaxQueues = 64
	// MaxPortBuckets is the largest number of token buckets of all ports. Their slots begin
	// at FirstPortBucket, behind the slots of meters.
	MaxPortBuckets  = flowtable.MaxPortBuckets
	FirstPortBucket = flowtable.MaxBands
)

// queueOf returns the port's queue with this id. If the port does not have it, queueOf returns queue 0.
// If that does not exist either, queueOf returns nil, and the output is not limited.
func (p *PortInfo) queueOf(id uint32) *Queue {
	var first *Queue
	for i := range p.Queues {
		switch q := &p.Queues[i]; q.ID {
		case id:
			return q
		case 0:
			first = q
		}
	}
	return first
}

// emitQueue emits an OpQueue with the token bucket of the queue that the actions have chosen. It limits
// the output to the port. emitQueue emits nothing for a port without queues.
func (x *xlate) emitQueue(port *PortInfo) {
	if len(port.Queues) == 0 {
		return
	}
	if q := port.queueOf(x.queue); q != nil {
		x.emit(flowtable.Action{Op: flowtable.OpQueue, U16: uint16(port.At()), U32: q.Slot})
	}
}

// enqueue executes the action enqueue: it sends the frame to a port through a queue. Later outputs use
// the queue that was chosen before.
func (x *xlate) enqueue(a *openflow.Action) {
	queue := x.queue
	x.queue = uint32(a.Value[1])
	x.output(a.Port)
	x.queue = queue
}

// police emits an OpMeter for each token bucket that limits the frames from the port
// (PortInfo.Policing).
func (x *xlate) police(port *PortInfo) {
	for i := range port.Policing {
		x.emit(flowtable.Action{Op: flowtable.OpMeter, U32: port.Policing[i].Slot, U64: uint64(packet.DropPoliced)})
	}
}
