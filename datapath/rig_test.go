// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"testing"

	"weft/flowtable"
	"weft/internal/shm"
	"weft/packet"
	"weft/port/porttest"
)

var testSizes = Sizes{
	Cache: flowtable.Sizes{Megaflows: 1024, Exact: 1024, Masks: 32, Actions: 8192},
	Held:  64, CommandRing: 1 << 18, UpcallRing: 1 << 18, Templates: 16,
}

// rig is a worker with control's ends of the command and upcall rings, and with ports in memory. The
// test runs each pass of the worker by calling turn, unless it calls run.
type rig struct {
	t        testing.TB
	w        *Worker
	sh       *Shared
	commands *shm.Producer
	upcalls  *shm.Consumer
	ports    map[uint32]*porttest.Device
}

func newRig(t testing.TB, sizes Sizes) *rig {
	t.Helper()
	var measure shm.Layout
	CarveShared(&measure, sizes)
	region, err := shm.Create("test", measure.Off)
	if err != nil {
		t.Fatal(err)
	}
	sh := CarveShared(&shm.Layout{Mem: region.Bytes()}, sizes)
	command, err := shm.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	upcall, err := shm.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWorker(sh, Config{Core: -1, SpinUS: 1 << 40, CommandEvent: command, UpcallEvent: upcall, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.waiter.parking.afterNS = ^uint64(0) // no queue is parked, except in tests of parking
	if _, measuring := t.(*testing.B); !measuring {
		// The clock stands still, so that a busy machine changes neither batches nor timeouts.
		w.fixed = w.clock()
	}
	r := &rig{t: t, w: w, sh: sh, ports: map[uint32]*porttest.Device{},
		commands: shm.NewProducer(sh.Commands, command), upcalls: shm.NewConsumer(sh.Upcalls)}
	t.Cleanup(func() {
		w.Close()
		for _, d := range r.ports {
			d.Close()
		}
		closeFDs(command, upcall)
		region.Close()
	})
	return r
}

// turn runs one pass of the worker. A fault in a port's memory fails only that port, as
// in Run.
func (r *rig) turn() {
	defer r.w.recoverFault()
	r.w.finish()
	r.w.pass()
}

// addPort adds a port with one queue in each direction. Run must not be running.
func (r *rig) addPort(number uint32, o porttest.Options, uplink bool) *porttest.Device {
	r.t.Helper()
	d := porttest.New(1, o)
	r.ports[number] = d
	if err := r.w.addPort(&PortQueues{Port: number, Rx: d.Rx(), Tx: d.Tx()[0], Tunnel: uplink}); err != nil {
		r.t.Fatal(err)
	}
	return d
}

func (r *rig) rx(number uint32) *porttest.Rx { return r.ports[number].RxQueues[0] }
func (r *rig) tx(number uint32) *porttest.Tx { return r.ports[number].TxQueues[0] }

func (r *rig) inject(number uint32, frames ...[]byte) {
	r.t.Helper()
	for _, f := range frames {
		if !r.rx(number).Inject(f) {
			r.t.Fatal("receive queue full")
		}
	}
}

func (r *rig) command(msg []byte) {
	r.t.Helper()
	if !r.commands.Push(msg) {
		r.t.Fatal("command ring full")
	}
}

func (r *rig) install(slot, inPort uint32, dst uint64, actions ...flowtable.Action) {
	r.t.Helper()
	key := flowtable.Key{flowtable.WPort: uint64(inPort) << 32, flowtable.WEthDst: dst << 16}
	mask := flowtable.Key{flowtable.WPort: 0xffffffff << 32, flowtable.WEthDst: 0xffffffffffff << 16}
	r.command(AppendInstall(nil, slot, &key, &mask, actions))
}

func (r *rig) upcall() (Upcall, bool) {
	r.t.Helper()
	msg := r.upcalls.Next()
	if msg == nil {
		return Upcall{}, false
	}
	up, err := ParseUpcall(msg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.upcalls.Release()
	return up, true
}

func (r *rig) mustUpcall(op UpcallOp) Upcall {
	r.t.Helper()
	up, ok := r.upcall()
	if !ok || up.Op != op {
		r.t.Fatalf("upcall %+v %v, want operation %d", up, ok, op)
	}
	return up
}

func (r *rig) drops(want map[packet.DropReason]uint64) {
	r.t.Helper()
	for reason := range packet.DropReason(packet.DropReasons) {
		if got := r.sh.Counters.Drops[reason]; got != want[reason] {
			r.t.Errorf("%d dropped as %v, want %d", got, reason, want[reason])
		}
	}
}

func (r *rig) equal(name string, got, want uint64) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: %d, want %d", name, got, want)
	}
}

func output(port uint32) flowtable.Action { return flowtable.Action{Op: flowtable.OpOutput, U32: port} }

// ethernet returns a frame of n bytes without an IP header; its payload contains
// number.
func ethernet(dst uint64, n int, number uint32) []byte {
	f := make([]byte, n)
	packet.Ethernet(f).SetDst(dst)
	packet.Ethernet(f).SetSrc(0x020000000001)
	packet.Ethernet(f).SetType(0x88b5)
	binary.BigEndian.PutUint32(f[14:], number)
	for i := 18; i < n; i++ {
		f[i] = byte(i * int(number+1))
	}
	return f
}

func number(f []byte) uint32 { return binary.BigEndian.Uint32(f[14:]) }
