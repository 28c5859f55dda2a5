package datapath

import (
	"sync/atomic"

	"weft/internal/cpu"
	"weft/packet"
	"weft/port"
)

// txPort is a datapath port as outputs see it. Worker owns.
type txPort struct {
	tx       port.Tx // nil: nothing can be sent there
	takes    packet.Offloads
	lock     *TxLock // nil: no other worker uses tx
	counters *PortCounters
	no       uint32
	number   uint16 // of the queue among the device's transmit queues
	count    uint8  // frames in pending
	touched  bool   // in Worker.touched
	local    bool   // what is sent there, a process of this machine may wait for
	owed     bool   // in Worker.owed
	owedIn   uint64 // pass since which a flush is owed; 0: none is
	fault    string
	pending  [packet.BatchSize]uint8 // frames of the batch, in order
}

// portList lists ports, each at most once.
type portList struct {
	count int
	ports [port.MaxPorts]uint16
}

func (l *portList) add(p *txPort) {
	l.ports[l.count] = uint16(p.no)
	l.count++
}

// TxLock guards a transmit queue that several workers use.
type TxLock struct {
	held atomic.Uint32
	_    [60]byte
}

// maxLockPauses is how long a worker spins on a lock before it lets other threads
// run: the holder may have lost its core.
const maxLockPauses = 256

func (l *TxLock) lock() {
	for n := 0; !l.held.CompareAndSwap(0, 1); n++ { // pairs with unlock
		cpu.Pause(1)
		if n >= maxLockPauses {
			cpu.Yield()
		}
	}
}

func (l *TxLock) unlock() { l.held.Store(0) }

// output sends frame i to port to. If last, nothing changes the frame any more
// and it may wait for the end of the batch; otherwise it goes now, after what the
// port was to send before it.
func (w *Worker) output(i int, to uint32, last bool) {
	if to >= port.MaxPorts || w.ports[to].tx == nil {
		w.overlay[i] = overlay{}
		w.drop(&w.batch.Frames[i], packet.DropNoPort)
		return
	}
	p := &w.ports[to]
	w.touch(p)
	if p.count == packet.BatchSize {
		w.sendPending(p)
	}
	p.pending[p.count] = uint8(i)
	p.count++
	if !last || w.tracks.forked > 0 {
		w.sendPending(p)
	}
}

// touch has the port flushed at the end of the batch.
func (w *Worker) touch(p *txPort) {
	if !p.touched {
		p.touched = true
		w.touched.add(p)
	}
}

// sendPending gives the port what is pending for it; what it does not take is
// dropped.
func (w *Worker) sendPending(p *txPort) {
	order := p.pending[:p.count]
	if w.taps.on {
		w.tapSend(p, order)
	}
	w.delivered = w.delivered || p.local
	w.useTx(p, 0)
	if w.undone == 0 {
		w.send(p, order)
	} else {
		w.sendUndone(p, order)
	}
	w.leaveTx()
	p.count = 0
}

// send gives the port frames that it takes as they are.
func (w *Worker) send(p *txPort, order []uint8) {
	taken := p.tx.Send(&w.batch, order)
	if w.taps.on {
		w.tapSent(p, order, taken)
	}
	if w.sentAll(p, order, taken) {
		return
	}
	for n, i := range order {
		why := w.batch.Frames[i].Drop
		if n >= taken {
			why = packet.DropTxFull
		}
		w.countSent(p, int(i), why)
	}
	for _, i := range order { // afterwards: a frame may be in order twice
		w.batch.Frames[i].Drop = packet.DropNone // another port may take it
	}
}

// sentAll counts frames that were all sent, without a tunnel; false, and nothing
// counted, for others.
func (w *Worker) sentAll(p *txPort, order []uint8, taken int) bool {
	if taken != len(order) || w.overlaid {
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
	p.counters.TxPackets += uint64(taken)
	p.counters.TxBytes += uint64(bytes)
	return true
}

// countSent counts frame i as sent by p, or as dropped there.
func (w *Worker) countSent(p *txPort, i int, why packet.DropReason) {
	over := w.overlay[i]
	w.overlay[i] = overlay{}
	w.count(p, over, w.batch.Frames[i].Len(), why)
}

func (w *Worker) count(p *txPort, over overlay, length int, why packet.DropReason) {
	if why != packet.DropNone {
		w.sh.Counters.Drops[why]++
		p.counters.TxDrops++
		if over.port != 0 {
			w.sh.Ports[over.port].TxDrops++
		}
		return
	}
	p.counters.TxPackets++
	p.counters.TxBytes += uint64(length)
	if over.port != 0 {
		w.sh.Ports[over.port].TxPackets++
		w.sh.Ports[over.port].TxBytes += uint64(length - int(over.outer))
	}
}

// finish ends the batch in hand: pending frames go, touched queues are flushed,
// control is told, and then the receive queue and the held slots get back what
// the batch has borrowed.
func (w *Worker) finish() {
	w.cursor = w.batch.N
	if w.taps.on {
		w.mark(1 + StageExecute)
	}
	for at := range w.touched.ports[:w.touched.count] {
		p := &w.ports[w.touched.ports[at]]
		if p.tx == nil {
			p.touched = false
			continue // failed meanwhile; what was pending has been counted
		}
		if p.count > 0 {
			w.sendPending(p)
		}
		w.flush(p, w.more)
		p.touched = false
	}
	w.more = false
	w.overlaid = false
	if w.unpublished {
		w.unpublished = false
		w.upcalls.Publish()
	}
	if w.taps.on {
		w.tapFinish()
	}
	if q := w.rxInUse; q != nil {
		w.releaseOrKeep(q)
		w.rxInUse = nil
	} else {
		w.freeResumed()
	}
	w.touched.count = 0
	w.batch.Reset()
}

// flush flushes a port, or lets it put that off where more frames are about to come.
func (w *Worker) flush(p *txPort, more bool) {
	w.useTx(p, flushing)
	if more {
		more = p.tx.Postpone()
	} else {
		p.tx.Flush()
	}
	w.leaveTx()
	switch {
	case !more:
		p.owedIn = 0
	case p.owedIn == 0:
		p.owedIn = w.turn
		if !p.owed {
			p.owed = true
			w.owed.add(p)
		}
	}
}

// flushOwed makes up for flushes that were put off before a pass: so what waits for
// more frames does so for a pass at most.
func (w *Worker) flushOwed(turn uint64) {
	for at := w.owed.count - 1; at >= 0; at-- {
		p := &w.ports[w.owed.ports[at]]
		if p.owedIn >= turn {
			continue
		}
		w.owed.count--
		w.owed.ports[at] = w.owed.ports[w.owed.count]
		owed := p.owedIn != 0
		p.owed, p.owedIn = false, 0 // before the queue is used: its memory may fail
		if owed && p.tx != nil {
			w.flush(p, false)
		}
	}
}
