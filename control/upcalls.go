package control

import (
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/datapath"
	"weft/internal/shm"
	"weft/openflow"
)

// upcalls reads what one engine's workers tell: one goroutine a worker, and one
// that sleeps on the eventfd they share and wakes the others.
type upcalls struct {
	d       *Daemon
	workers *workers
	event   *os.File
	wake    []chan struct{} // index: worker
	stop    chan struct{}
	stopped sync.WaitGroup
}

func (d *Daemon) startUpcalls(w *workers) (*upcalls, error) {
	fd, err := unix.FcntlInt(uintptr(w.mem.UpcallEvent), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	u := &upcalls{d: d, workers: w, event: os.NewFile(uintptr(fd), "upcalls"), stop: make(chan struct{})}
	for i := range w.shared {
		u.wake = append(u.wake, make(chan struct{}, 1))
		u.stopped.Add(1)
		go u.serve(i)
	}
	go u.watch()
	return u, nil
}

// close ends the goroutines. Caller holds neither d.mu nor anything that a miss
// needs.
func (u *upcalls) close() {
	close(u.stop)
	u.event.Close() // ends watch
	u.stopped.Wait()
}

// watch wakes every worker's goroutine when the eventfd becomes readable. They
// look for themselves whether it was for them.
func (u *upcalls) watch() {
	var count [8]byte
	for {
		if _, err := u.event.Read(count[:]); err != nil {
			return // closed
		}
		for _, wake := range u.wake {
			notify(wake)
		}
	}
}

// serve answers worker i's upcalls in order. A message is released once it is
// answered, so that one that is not is found by the next control process.
func (u *upcalls) serve(i int) {
	defer u.stopped.Done()
	ring := shm.NewConsumer(u.workers.shared[i].Upcalls)
	for {
		for msg := ring.Next(); msg != nil; msg = ring.Next() {
			u.handle(i, msg)
			ring.Release()
			select {
			case <-u.stop:
				return
			default:
			}
		}
		if !ring.Sleep() {
			continue
		}
		select {
		case <-u.wake[i]:
		case <-u.stop:
			return
		}
		ring.Awake()
	}
}

func (u *upcalls) handle(worker int, msg []byte) {
	up, err := datapath.ParseUpcall(msg)
	if err != nil {
		u.d.log.Error("upcall makes no sense", "worker", worker, "error", err)
		return
	}
	switch up.Op {
	case datapath.UpMiss:
		u.d.miss(u.workers, heldFrame{worker, up.Arg}, &up)
	case datapath.UpNeighbour:
		u.d.tunnels.wait(up.Template, heldFrame{worker, up.Arg})
	case datapath.UpFault:
		go u.d.portFault(up.Arg, up.Reason) // asks the engine, which asks the worker
	}
}

// miss translates the key of a frame that no megaflow matched, installs the
// megaflow that comes of it, and has the frame looked up again. Where there is
// no room for the megaflow, the frame is executed by itself.
func (d *Daemon) miss(w *workers, held heldFrame, up *datapath.Upcall) {
	d.missLearnt(w, held, up, false)
}

// missLearnt is miss; learnt says that the frame has been learnt from.
func (d *Daemon) missLearnt(w *workers, held heldFrame, up *datapath.Upcall, learnt bool) {
	bytes := atomic.LoadUint32(&w.shared[held.worker].Held[up.Arg%uint32(len(w.shared[held.worker].Held))].Len)
	d.mu.RLock()
	if d.workers != w { // the engine has been replaced meanwhile
		d.mu.RUnlock()
		return
	}
	generation := d.macs.generation()
	env := d.env()
	t := d.pipeline.Translate(&up.Key, env)
	if !learnt && d.learnFirst(w, held, up, &t) {
		d.mu.RUnlock()
		return
	}
	m := d.newMegaflow(&up.Key, &t, monotonic())
	verdict := d.install(m, &up.Key)
	if verdict == refused {
		w.push(held.worker, datapath.AppendExecute(nil, held.slot, t.Actions))
	} else {
		w.push(held.worker, datapath.AppendCommand(nil, datapath.CmdRetry, held.slot, nil))
	}
	if t.Learn.Valid {
		d.learn(t.Learn, m.madeNS)
	}
	d.mu.RUnlock()
	if verdict == refused {
		d.creditExecuted(m, uint64(bytes))
	}
	if t.UsedMACs && d.macs.generation() != generation {
		d.macsChanged() // by another miss, between this translation and its installation
	}
}

// creditExecuted counts a frame that no megaflow counted.
func (d *Daemon) creditExecuted(m *megaflow, bytes uint64) {
	d.refusals.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	now := monotonic()
	d.counters.credit(noSlot, m.places, 1, bytes, now)
	for _, r := range m.rules {
		r.Credit(1, bytes, now)
	}
}

// learn applies what normal has seen. Any lock but macs.mu may be held.
func (d *Daemon) learn(l openflow.Learn, nowNS uint64) {
	if d.macs.learn(l, nowNS) {
		d.macsChanged()
	}
}

// macsChanged has megaflows that depend on learnt addresses revalidated soon.
func (d *Daemon) macsChanged() { notify(d.macsStale) }

// macs guards the table of learnt addresses. mu is a leaf.
type macs struct {
	mu    sync.RWMutex
	table *openflow.MACTable
}

// maxMACs bounds the learnt addresses; at the limit the one seen longest ago
// makes room.
const maxMACs = 65536

func newMACs() *macs {
	return &macs{table: openflow.NewMACTable(maxMACs, openflow.DefaultMACAge)}
}

func (m *macs) generation() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Generation()
}

func (m *macs) learn(l openflow.Learn, nowNS uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table.Learn(l, nowNS)
}

func (m *macs) lookup(vlan uint16, mac uint64) (uint32, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Lookup(vlan, mac)
}

func (m *macs) vtep(vlan uint16, mac uint64) netip.Addr {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.VTEP(vlan, mac)
}

func (m *macs) expire(nowNS uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table.Expire(nowNS) > 0
}

func (m *macs) flush(port uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.table.Flush(port)
}

func (m *macs) len() int {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.table.Len()
}
