// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"weft/internal/shm"
	"weft/port"
)

// PortQueues has the queues of one port that one worker uses. Other workers may use other queues of the port.
type PortQueues struct {
	Port uint32 // datapath port number
	// Rx has the receive queues that only this worker uses. It may be empty.
	Rx []port.Rx
	// RxNumbers has, for each queue in Rx, its number among all receive queues of the device; nil: 0, 1
	// and so on. TxNumber is the number of Tx among the device's transmit queues.
	RxNumbers []uint16
	TxNumber  uint16
	// Tx is the port's transmit queue; nil: none. Lock guards Tx if several workers
	// share it; nil: only this worker uses Tx.
	Tx   port.Tx
	Lock *TxLock
	// Tunnel marks an uplink, whose frames the worker decapsulates.
	Tunnel bool
}

// mailbox carries requests of other goroutines to the worker, one at a time: to add or remove a port, or to
// begin another pass (Settle). Stop ends the worker through it.
type mailbox struct {
	mail     atomic.Pointer[mail] // present request; nil: none. Its store in post pairs with takeMail.
	mailing  sync.Mutex           // serializes calls of post
	stopping atomic.Bool          // Stop was called
	ended    chan struct{}        // closed once Run has returned
}

// mail is a request to the worker. The worker executes it between two passes of the worker's loop.
type mail struct {
	add    *PortQueues // queues to add; nil: remove the port with the number in remove
	remove uint32
	err    error
	read   atomic.Bool // the worker has executed the request and set err; pairs with the load in post
}

// AddPort adds the queues of a port to the worker, and returns when the worker uses them. Run must be
// running or about to start. After an error the worker uses none of the queues. It is an error if
// the worker already has the port.
func (w *Worker) AddPort(q PortQueues) error {
	if q.Port == 0 || q.Port >= port.MaxPorts {
		return fmt.Errorf("port %d: expected 1 to %d", q.Port, port.MaxPorts-1)
	}
	return w.post(&mail{add: &q})
}

// RemovePort removes the port's queues, if any, from the worker. When it returns, the
// worker uses no memory or descriptor of the port.
func (w *Worker) RemovePort(number uint32) {
	if number < port.MaxPorts {
		w.post(&mail{remove: number})
	}
}

// Settle waits until the worker has begun another pass, so that everything that the worker did in earlier
// passes of the worker's loop is complete. It returns false if Run has ended.
func (w *Worker) Settle() bool { return w.post(&mail{remove: 0}) == nil }

// post sends the worker a request and waits until it is executed. It polls for the result, because the
// worker would need a system call to wake up this goroutine. The result is the request's error, or an
// error if Run has ended.
func (w *Worker) post(m *mail) error {
	w.mailing.Lock()
	defer w.mailing.Unlock()
	w.mail.Store(m)
	shm.SignalOwn(w.config.CommandEvent)
	for pause := 10 * time.Microsecond; !m.read.Load(); pause = min(2*pause, time.Millisecond) {
		select {
		case <-w.ended:
			return fmt.Errorf("the worker has ended")
		case <-time.After(pause):
		}
	}
	return m.err
}

func (w *Worker) takeMail() {
	m := w.mail.Load() // pairs with post
	if m == nil {
		return
	}
	if m.add != nil {
		m.err = w.addPort(m.add)
	} else {
		w.flushOwed(w.turn) // executes the flushes that earlier passes have postponed
		w.releaseAllQueues()
		w.detach(m.remove)
		w.forgetFault(m.remove)
	}
	w.mail.Store(nil) // cleared last, because after a memory fault the next pass must repeat the request
	m.read.Store(true)
}

func (w *Worker) addPort(q *PortQueues) error {
	p := &w.ports[q.Port]
	if p.tx != nil {
		return fmt.Errorf("port %d is already attached", q.Port)
	}
	for at := range w.queues.count {
		if w.queues.queue(at).port == q.Port {
			return fmt.Errorf("port %d is already attached", q.Port)
		}
	}
	w.forgetFault(q.Port)
	if w.queues.count+len(q.Rx) > maxQueues {
		return fmt.Errorf("port %d: the worker would have more than %d receive queues: use fewer queues or more workers", q.Port, maxQueues)
	}
	for i, rx := range q.Rx {
		number := uint16(i)
		if i < len(q.RxNumbers) {
			number = q.RxNumbers[i]
		}
		counted, _ := rx.(port.Counted)
		offloaded, _ := rx.(port.Offloaded)
		s := w.queues.add(rxQueue{rx: rx, port: q.Port, number: number, waitFD: int32(rx.WaitFD()), polled: rx.Polled(),
			counted: counted, tunnel: q.Tunnel, usedNS: w.now, offloaded: offloaded})
		w.kernelFlows.openQueue(s, w.now)
		s.ahead, _ = rx.(port.Prefetcher)
		if keeper, ok := rx.(port.Keeper); ok && keeper.MayKeep() {
			s.keeper = keeper
		}
		_, s.edge = rx.(port.EdgeWatched)
		s.ready = true // frames may have arrived before epoll watched the descriptor
		if err := w.waiter.watch(s); err != nil {
			w.detach(q.Port)
			return fmt.Errorf("port %d: watch descriptor %d: %w", q.Port, s.waitFD, err)
		}
	}
	w.accounting.reset(q.Port, q.Tunnel)
	w.sh.SpentNS[q.Port] = 0
	w.receivers.forget(p)
	p.tx, p.lock, p.number = q.Tx, q.Lock, q.TxNumber
	_, p.foreign = q.Tx.(port.ForeignTx)
	p.local, p.tap = false, false
	if len(q.Rx) > 0 && !q.Tunnel {
		_, guest := q.Rx[0].(port.EdgeWatched)
		p.tap = q.Rx[0].Polled()
		p.local = p.tap || guest
	}
	if p.offloads = 0; p.tx != nil {
		p.offloads = p.tx.Offloads()
	}
	return nil
}

func (w *Worker) forgetFault(number uint32) {
	if w.ports[number].fault != "" {
		w.ports[number].fault = ""
		w.faults--
	}
}
