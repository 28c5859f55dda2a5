// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"sync/atomic"

	"weft/internal/cpu"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

// outputs has the output ports, and the frames of the batch that wait to be sent to them.
type outputs struct {
	ports   [port.MaxPorts]txPort
	touched portList                  // output ports to flush at the end of the batch
	owed    portList                  // ports whose flush was postponed, see flush
	overlay [packet.BatchSize]overlay // outer header of each pending frame
	// tunnel fields that an action list has set. The index is tracks.forked: a look-up in the middle of a list
	// executes another list, which has its own fields.
	fields    [maxForks + 1]tunnel.Fields
	overlaid  bool    // some frame of the batch may have an entry in overlay
	delivered bool    // this pass has sent a frame to a local process, see fewFrames
	toTap     bool    // one of these frames went to a tap
	txInUse   *txPort // output port whose transmit queue is in use
	inHand    *InHand
}

// txPort is an output port with the worker's state for it. The worker owns it, except for a transmit queue
// that it shares with other workers.
type txPort struct {
	tx       port.Tx // transmit queue; nil: the port has none
	offloads packet.Offloads
	lock     *TxLock // lock of a shared transmit queue; nil: not shared
	counters *PortCounters
	port     uint32
	number   uint16 // the queue's number among the transmit queues of the device
	count    uint8  // number of frames in pending
	touched  bool   // the port is in outputs.touched
	local    bool   // a process of this host receives the port's frames: a guest, or a process behind a tap
	tap      bool   // the local process is behind a tap, so reading its answer costs a system call
	owed     bool   // the port is in outputs.owed
	foreign  bool   // tx writes to another process's memory, which may be slow (port.ForeignTx)
	sending  bool   // Send of tx is running; a memory fault may interrupt it
	sent     uint8  // number of frames at the start of pending that are already sent and counted
	owedIn   uint64 // pass in which the oldest postponed flush was due; 0: no flush is postponed
	fault    string
	pending  [packet.BatchSize]uint8 // frames of the batch to send, in order
	slowNS   uint64                  // debt for slow copies into the port's memory, see receiver.go
	// state of token buckets, as in port.TakeToken. They limit the answers to frames of this port, and the
	// copies of such frames to the controller and to exporters.
	answersNS, reservedNS, sampledNS uint64
}

// portList is a list of distinct ports.
type portList struct {
	count int
	ports [port.MaxPorts]uint16
}

func (l *portList) add(p *txPort) {
	l.ports[l.count] = uint16(p.port)
	l.count++
}

// TxLock is a spin lock in a cache line of its own. It guards what several workers use: a transmit queue, or
// the BFD sessions.
type TxLock struct {
	held atomic.Uint32
	_    [60]byte
}

// maxLockPauses is the number of attempts to take a lock after which the worker yields its core before
// each further one. The thread that holds the lock may be waiting for this core.
const maxLockPauses = 256

func (l *TxLock) lock() {
	for n := 0; !l.held.CompareAndSwap(0, 1); n++ { // pairs with the store in unlock
		cpu.Pause(1)
		if n >= maxLockPauses {
			cpu.Yield()
		}
	}
}

func (l *TxLock) unlock() { l.held.Store(0) }

// output sends frame i to the port with this number. If isLast is true, no further action changes
// the frame, so it may wait until the end of the batch.
func (w *Worker) output(i int, number uint32, isLast bool) {
	if reason := w.unsendable(number); reason != packet.DropNone {
		w.dropAt(number, i, reason)
		return
	}
	p := &w.ports[number]
	w.touch(p)
	if p.count == packet.BatchSize {
		w.sendPending(p)
	}
	p.pending[p.count] = uint8(i)
	p.count++
	if !isLast || w.tracks.forked > 0 {
		w.sendPending(p)
	}
}

// unsendable returns the reason why the worker cannot send to the port with this number, or DropNone.
func (o *outputs) unsendable(number uint32) packet.DropReason {
	switch {
	case number >= port.MaxPorts:
		return packet.DropNoPort
	case o.ports[number].tx == nil:
		return packet.DropNotAttached
	}
	return packet.DropNone
}

// dropAt counts a copy of frame i as dropped at the output port with this number, and not at the frame's
// input port. Other outputs of the frame may have sent their copies.
func (w *Worker) dropAt(number uint32, i int, reason packet.DropReason) {
	f, outer := &w.batch.Frames[i], w.overlay[i]
	w.overlay[i] = overlay{}
	if number == 0 || number >= port.MaxPorts {
		w.drop(f, reason)
		return
	}
	w.captures.drop(f, reason)
	w.sh.Counters.Drops[reason]++
	w.sh.Ports[number].dropTx(reason)
	if outer.port != 0 {
		w.sh.Ports[outer.port].dropTx(reason)
	}
}

func (c *PortCounters) dropTx(reason packet.DropReason) {
	c.TxDrops++
	c.TxReasons[reason]++
}

// touch adds port p to the ports that finish flushes at the end of the batch.
func (o *outputs) touch(p *txPort) {
	if !p.touched {
		p.touched = true
		o.touched.add(p)
	}
}

// sendPending sends the frames that wait for port p. Frames that the port's transmit queue does not
// take are dropped.
func (w *Worker) sendPending(p *txPort) {
	order := p.pending[:p.count]
	w.captures.send(p, order)
	w.delivered = w.delivered || p.local
	w.toTap = w.toTap || p.tap
	if p.slowNS > 0 && w.refuse(p, order) {
		p.count, p.sent = 0, 0
		return
	}
	w.useTx(p, 0)
	if w.undone == 0 {
		w.send(p, order)
	} else {
		w.sendUndone(p, order)
	}
	w.leaveTx()
	p.count, p.sent = 0, 0
}

// send sends frames to port p and counts them. p supports all offloads that the frames need.
func (w *Worker) send(p *txPort, order []uint8) {
	p.sending = true
	taken := w.deliver(p, &w.batch, order)
	p.sending = false
	w.captures.sent(p, order, taken)
	if w.sentAll(p, order, taken) {
		return
	}
	for n, i := range order {
		reason := w.batch.Frames[i].Drop
		if n >= taken {
			reason = packet.DropTxFull
		}
		w.countSent(p, int(i), reason)
	}
	for _, i := range order { // a separate loop, because the same frame may be in "order" twice
		w.batch.Frames[i].Drop = packet.DropNone // another output port may accept the frame
	}
}

// sentAll counts the sent frames in the usual case: port p has accepted all frames, and
// none has a tunnel header. In any other case it counts nothing and returns false.
func (w *Worker) sentAll(p *txPort, order []uint8, accepted int) bool {
	if accepted != len(order) || w.overlaid {
		return false
	}
	bytes, refused := 0, packet.DropNone
	for _, i := range order {
		f := &w.batch.Frames[i%packet.BatchSize]
		bytes += f.Len()
		refused |= f.Drop
	}
	if refused != packet.DropNone {
		return false
	}
	p.counters.TxPackets += uint64(accepted)
	p.counters.TxBytes += uint64(bytes)
	return true
}

// countSent counts frame i as sent by port p, or as dropped there if reason is not DropNone. The port of
// the frame's tunnel counts it, too.
func (w *Worker) countSent(p *txPort, i int, reason packet.DropReason) {
	outer := w.overlay[i]
	w.overlay[i] = overlay{}
	w.count(p, outer, w.batch.Frames[i].Len(), reason)
}

func (w *Worker) count(p *txPort, outer overlay, length int, reason packet.DropReason) {
	if reason != packet.DropNone {
		w.sh.Counters.Drops[reason]++
		p.counters.dropTx(reason)
		if outer.port != 0 {
			w.sh.Ports[outer.port].dropTx(reason)
		}
		return
	}
	p.counters.TxPackets++
	p.counters.TxBytes += uint64(length)
	if outer.port != 0 {
		w.sh.Ports[outer.port].TxPackets++
		w.sh.Ports[outer.port].TxBytes += uint64(length - int(outer.outer))
	}
}

// finish ends the batch. It sends pending frames, flushes the output ports and publishes upcalls. Then it
// releases the receive buffers, unless a postponed flush still needs them. If the frames of the batch have
// waited in slots, there are no receive buffers, and finish frees the slots.
func (w *Worker) finish() {
	w.cursor = w.batch.N
	w.captures.executed()
	for at := range w.touched.ports[:w.touched.count] {
		p := &w.ports[w.touched.ports[at]]
		if p.tx == nil {
			p.touched = false
			continue // the port failed, and its pending frames were counted as dropped
		}
		if p.count > 0 {
			w.sendPending(p)
		}
		w.flush(p, w.batchFull)
		p.touched = false
	}
	w.prefetchNext()
	w.batchFull = false
	w.overlaid = false
	w.upcalls.publish()
	w.captures.end()
	if q := w.rxInUse; q != nil {
		w.releaseOrKeep(q)
		w.rxInUse = nil
	} else {
		w.held.releaseResumed()
	}
	w.touched.count = 0
	w.batch.Reset()
}

// flush flushes the transmit queue of port p. If postpone is true, more frames will follow soon, and the
// queue may postpone the flush to the next pass of the worker's loop.
func (w *Worker) flush(p *txPort, postpone bool) {
	w.useTx(p, flushing)
	if postpone {
		postpone = p.tx.Postpone()
	} else {
		p.tx.Flush()
	}
	w.leaveTx()
	switch {
	case !postpone:
		p.owedIn = 0
	case p.owedIn == 0:
		p.owedIn = w.turn
		if !p.owed {
			p.owed = true
			w.owed.add(p)
		}
	}
}

// flushOwed executes the postponed flushes that were due before pass number "turn".
func (w *Worker) flushOwed(turn uint64) {
	for at := w.owed.count - 1; at >= 0; at-- {
		p := &w.ports[w.owed.ports[at]]
		if p.owedIn >= turn {
			continue
		}
		w.owed.count--
		w.owed.ports[at] = w.owed.ports[w.owed.count]
		owed := p.owedIn != 0
		p.owed, p.owedIn = false, 0 // cleared first, because the flush may fault
		if owed && p.tx != nil {
			w.flush(p, false)
		}
	}
}
