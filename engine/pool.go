// SPDX-License-Identifier: Apache-2.0

package engine

import (
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"

	"weft/conntrack"
	"weft/datapath"
	"weft/port"
)

// maxWorkers is the largest number of workers. The descriptors of the workers, two for each, and two
// others must fit into one OpStart message.
const maxWorkers = (maxDescriptors - 2) / 2

// spareProcs is the number of slots of the Go scheduler (GOMAXPROCS) beyond one for each worker: one for
// the connection to the control process, and one for the runtime.
const spareProcs = 2

// pool is the set of workers. Each worker has its own thread.
type pool struct {
	memory   *Memory
	table    *conntrack.Table
	sessions *datapath.BFDTable
	workers  []*datapath.Worker
}

// newPool starts the workers on the memory whose descriptors are fds. It owns fds.
func newPool(s Start, fds []int) (*pool, error) {
	if len(s.Cores) == 0 || len(s.Cores) > maxWorkers {
		closeAll(fds)
		return nil, fmt.Errorf("%d workers: expected 1 to %d", len(s.Cores), maxWorkers)
	}
	memory, err := OpenMemory(s, fds)
	if err != nil {
		return nil, err
	}
	p := &pool{memory: memory, table: conntrack.Open(memory.Connections, len(s.Cores)), sessions: datapath.NewBFDTable(memory.Shared[0].BFD)}
	// A worker never gives up its slot, so there must be others.
	runtime.GOMAXPROCS(len(s.Cores) + spareProcs)
	// The goroutine does not run on the cores of the workers: the engine has inherited an affinity without
	// them from the control process.
	if err := p.table.StartPopulating(); err != nil {
		p.stop()
		return nil, err
	}
	for i, core := range s.Cores {
		if err := p.startWorker(i, core, s.SpinUS); err != nil {
			p.stop()
			return nil, fmt.Errorf("worker %d: %w", i, err)
		}
	}
	return p, nil
}

func (p *pool) startWorker(i, core, spinUS int) error {
	var seed [8]byte
	crand.Read(seed[:]) // crand.Read never fails
	w, err := datapath.NewWorker(p.memory.Shared[i], datapath.Config{
		Core: core, SpinUS: spinUS, Seed: binary.LittleEndian.Uint64(seed[:]), OptionsKey: p.memory.OptionsKey,
		CommandEvent: p.memory.CommandEvents[i], UpcallEvent: p.memory.UpcallEvent,
		Connections: p.table, Sweeps: i == 0, Meters: p.memory.Shared[0].Meters, BFD: p.sessions,
	})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- w.Run() }()
	p.workers = append(p.workers, w)
	if !w.Settle() {
		return <-ended
	}
	return nil
}

// add divides the queues of device d among the workers.
func (p *pool) add(number uint32, d port.Device, tunnel bool) error {
	all := assign(number, len(p.workers), d.Rx(), d.Tx())
	for i := range all { // before any worker uses a queue
		all[i].Tunnel = tunnel
		place(i, p.memory.CommandEvents[i], &all[i])
	}
	for i, q := range all {
		if err := p.workers[i].AddPort(q); err != nil {
			return err
		}
	}
	return nil
}

// place tells each queue the number and the eventfd of its worker. If several workers share a transmit
// queue, the last one counts.
func place(worker, wake int, q *datapath.PortQueues) {
	for _, rx := range q.Rx {
		if p, ok := rx.(port.Placed); ok {
			p.Place(worker, wake)
		}
	}
	if p, ok := q.Tx.(port.Placed); ok {
		p.Place(worker, wake)
	}
}

// assign divides the queues of a port among the workers. Receive queue i goes to worker (portNumber+i)
// modulo the number of workers, so that the queues of different ports go to different workers, even if
// each port has only one.
//
// Every worker can send to every port. If there are too few transmit queues, workers share them under
// a lock. The worker of receive queue i also sends on transmit queue i. A tap or a guest sends the
// frames of a connection on the queue on which it last received. Any other assignment could therefore
// move a connection between two workers, which would reorder its frames.
func assign(portNumber uint32, workers int, rx []port.Rx, tx []port.Tx) []datapath.PortQueues {
	all := make([]datapath.PortQueues, workers)
	for i := range all {
		all[i].Port = portNumber
	}
	for i := range rx {
		q := &all[(int(portNumber)+i)%workers]
		q.Rx, q.RxNumbers = append(q.Rx, rx[i]), append(q.RxNumbers, uint16(i))
	}
	for i := range tx {
		var lock *datapath.TxLock
		// other workers use the queue too, because there are more workers than transmit queues
		if i+len(tx) < workers {
			lock = new(datapath.TxLock)
		}
		for k := i; k < workers; k += len(tx) {
			q := &all[(int(portNumber)+k)%workers]
			q.Tx, q.Lock, q.TxNumber = tx[i], lock, uint16(i)
		}
	}
	return all
}

// remove takes a port from every worker. When remove returns, no worker uses the port.
func (p *pool) remove(number uint32) {
	for _, w := range p.workers {
		w.RemovePort(number)
	}
}

// halt ends all workers at the same time. When halt returns, this process uses no ring and no longer
// changes the connection table.
func (p *pool) halt() {
	var all sync.WaitGroup
	for _, w := range p.workers {
		all.Go(w.Stop)
	}
	all.Wait()
	p.table.StopPopulating()
}

// stop ends the workers and unmaps their shared memory.
func (p *pool) stop() {
	for _, w := range p.workers {
		w.Stop()
		w.Close()
	}
	p.workers = nil
	p.table.StopPopulating()
	p.memory.Close()
}
