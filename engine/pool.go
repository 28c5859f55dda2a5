package engine

import (
	crand "crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"

	"weft/conntrack"
	"weft/datapath"
	"weft/internal/cpu"
	"weft/port"
)

// MaxWorkers is what fits into one OpStart: two descriptors a worker, and two.
const MaxWorkers = (MaxDescriptors - 2) / 2

// spareProcs is how many goroutines can run beside the workers: the one that
// serves control, and the runtime's.
const spareProcs = 2

// pool is the workers, each on a thread of its own.
type pool struct {
	memory  *Memory
	table   *conntrack.Table
	workers []*datapath.Worker
}

// newPool starts the workers on the memory behind fds, which it owns.
func newPool(s Start, fds []int) (*pool, error) {
	if len(s.Cores) == 0 || len(s.Cores) > MaxWorkers {
		closeAll(fds)
		return nil, fmt.Errorf("%d workers: expected 1 to %d", len(s.Cores), MaxWorkers)
	}
	memory, err := OpenMemory(s, fds)
	if err != nil {
		return nil, err
	}
	p := &pool{memory: memory, table: conntrack.Open(memory.Connections, len(s.Cores))}
	// A worker never gives its processor up, so the others need their own.
	runtime.GOMAXPROCS(len(s.Cores) + spareProcs)
	// Every thread moves off the workers' cores before those are pinned to them;
	// threads started later inherit it.
	if err := cpu.Confine(s.Cores); err != nil {
		p.stop()
		return nil, err
	}
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
	crand.Read(seed[:]) // never fails
	w, err := datapath.NewWorker(p.memory.Shared[i], datapath.Config{
		Core: core, SpinUS: spinUS, Seed: binary.LittleEndian.Uint64(seed[:]),
		CommandEvent: p.memory.CommandEvents[i], UpcallEvent: p.memory.UpcallEvent,
		Connections: p.table, Sweeps: i == 0, Meters: p.memory.Shared[0].Meters,
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

// add gives a device's queues to the workers.
func (p *pool) add(no uint32, d port.Device, tunnel bool) error {
	all := assign(no, len(p.workers), d.Rx(), d.Tx())
	for i := range all { // before any worker uses one of them
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

// place tells queues which worker calls them. A transmit queue that several workers
// share is told the last.
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

// assign shares the queues of port no out among the workers. Receive queue i goes
// to worker (no+i) modulo their number, so that ports of one queue spread too.
// Every worker can send to every port: where workers outnumber transmit queues,
// they share them, under a lock. A worker that has receive queue i sends on queue i:
// a tap, or a guest, sends a connection where it was last heard from, and would
// otherwise go back and forth between two workers, its frames out of order.
func assign(no uint32, workers int, rx []port.Rx, tx []port.Tx) []datapath.PortQueues {
	all := make([]datapath.PortQueues, workers)
	for i := range all {
		all[i].Port = no
	}
	for i := range rx {
		q := &all[(int(no)+i)%workers]
		q.Rx, q.RxNumbers = append(q.Rx, rx[i]), append(q.RxNumbers, uint16(i))
	}
	for i := range tx {
		var lock *datapath.TxLock
		if i+len(tx) < workers { // the next worker that has this queue
			lock = new(datapath.TxLock)
		}
		for k := i; k < workers; k += len(tx) {
			q := &all[(int(no)+k)%workers]
			q.Tx, q.Lock, q.TxNumber = tx[i], lock, uint16(i)
		}
	}
	return all
}

// remove takes a port from every worker; none uses it when it returns.
func (p *pool) remove(no uint32) {
	for _, w := range p.workers {
		w.RemovePort(no)
	}
}

// stop ends the workers and unmaps their memory.
func (p *pool) stop() {
	for _, w := range p.workers {
		w.Stop()
		w.Close()
	}
	p.workers = nil
	p.table.StopPopulating()
	p.memory.Close()
}
