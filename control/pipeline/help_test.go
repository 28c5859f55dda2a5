// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/control/counters"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/waitfor"
	"weft/openflow"
)

// rig is a pipeline with one worker, played by the test, and ports without devices.
type rig struct {
	t         testing.TB
	dir       string
	change    sync.Mutex
	store     Store
	disk      *store.Store
	kernel    *underlay.Kernel
	p         *Pipeline
	region    *counters.Region
	memory    *engine.Memory // nil: no engine
	fake      *workertest.Worker
	gone      chan struct{} // closed when the engine has died
	infos     []openflow.PortInfo
	stop      context.CancelFunc
	stopped   sync.WaitGroup
	replacing sync.WaitGroup
}

var testSizes = datapath.Sizes{
	Cache: flowtable.Sizes{Megaflows: 1024, Exact: 1024, Masks: 16, Actions: 8192},
	Held:  256, CommandRing: 1 << 18, UpcallRing: 1 << 18, Templates: underlay.MaxTemplates,
}

// noMonitors and noPorts ignore every call.
type noMonitors struct{}

func (noMonitors) Count() int                                                  { return 0 }
func (noMonitors) TellFlow(time.Time, string, *openflow.Rule, func() api.Flow) {}

type noPorts struct{}

func (noPorts) UpdateLiveness() bool { return false }
func (noPorts) Fault(uint32, string) {}

func newRig(t testing.TB) *rig {
	t.Helper()
	f := &rig{t: t, dir: t.TempDir()}
	f.begin()
	t.Cleanup(f.end)
	return f
}

func (f *rig) begin() {
	f.t.Helper()
	check := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	var err error
	f.disk, err = store.Open(f.dir)
	check(err)
	f.store = f.disk
	f.kernel, err = underlay.Open(slog.New(slog.DiscardHandler))
	check(err)
	f.p = New(Setup{Change: &f.change, Store: storeOf{f}, Monitors: noMonitors{}, Sizes: testSizes.Cache,
		Cores: []int{0}, Log: slog.New(slog.DiscardHandler)})
	f.p.Attach(noPorts{}, underlay.NewTemplates(f.kernel, slog.New(slog.DiscardHandler)))
	f.change.Lock()
	defer f.change.Unlock()
	saved, err := f.disk.Load()
	check(err)
	if f.memory == nil {
		f.region, err = counters.New(testSizes.Cache.Megaflows)
		check(err)
		f.p.Load(&saved, f.region, false)
		f.setView()
		f.startEngine()
	} else {
		fd, err := unix.Dup(f.region.FD())
		check(err)
		f.region, err = counters.Open(fd, testSizes.Cache.Megaflows)
		check(err)
		f.p.Load(&saved, f.region, true)
		f.p.Inherit(workers.New(f.memory, f.gone))
		f.setView()
		f.p.LoadMACs()
		f.p.Resume()
	}
	check(f.p.AnswerUpcalls())
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.stopped.Go(func() { f.p.Run(ctx) })
}

// startEngine gives the pipeline an engine with one worker. The caller holds the lock
// of changes.
func (f *rig) startEngine() {
	memory, err := engine.NewMemory(engine.Start{Cores: []int{0}, Sizes: testSizes}, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.memory, f.gone = memory, make(chan struct{})
	f.fake = workertest.New(memory.Shared[0], memory.UpcallEvent, f.gone)
	w := workers.New(memory, f.gone)
	if f.p.Workers() != nil {
		f.p.EndUpcalls()
		f.p.Replace(w)
	}
	f.p.templates.Replay(w, f.region.Tunnels)
	f.p.Fill(w)
}

func (f *rig) kill() {
	close(f.gone)
	f.replacing.Go(func() {
		f.change.Lock()
		defer f.change.Unlock()
		old, fake := f.memory, f.fake
		f.startEngine()
		if err := f.p.AnswerUpcalls(); err != nil {
			f.t.Error(err)
		}
		fake.Wait()
		old.Close()
	})
}

func (f *rig) die() {
	f.replacing.Wait()
	f.stop()
	f.stopped.Wait()
	f.p.EndUpcalls()
	f.kernel.Close()
	if err := f.disk.Close(); err != nil {
		f.t.Fatal(err)
	}
	f.p = nil
}

func (f *rig) end() {
	if f.p == nil {
		return
	}
	f.die()
	close(f.gone)
	f.fake.Wait()
	f.memory.Close()
	f.memory = nil
}

// storeOf is a Store through which tests replace rig.store.
type storeOf struct{ f *rig }

func (s storeOf) ChangeFlows(save iter.Seq[store.Flow], remove []uint32) error {
	return s.f.store.ChangeFlows(save, remove)
}

func (s storeOf) ChangeTables(groups, meters map[uint32]string, remove []uint32) error {
	return s.f.store.ChangeTables(groups, meters, remove)
}

func (s storeOf) SaveTableConfigs(texts map[uint32]string) error {
	return s.f.store.SaveTableConfigs(texts)
}

func (s storeOf) SaveAddresses(data []byte) error { return s.f.store.SaveAddresses(data) }

func (s storeOf) LoadAddresses() ([]byte, error) { return s.f.store.LoadAddresses() }

func (f *rig) vxlanPorts(n int) {
	f.change.Lock()
	defer f.change.Unlock()
	for i := range n {
		f.infos = append(f.infos, openflow.PortInfo{No: uint32(i + 1), Name: fmt.Sprintf("p%d", i+1),
			Kind: openflow.PortTunnel, VNI: 1, Remote: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})})
	}
	f.setView()
	f.p.PortsChanged()
}

func (f *rig) deletePort(number uint32) {
	f.change.Lock()
	defer f.change.Unlock()
	f.infos[number-1].No = 0
	f.setView()
	f.p.ForgetPort(number)
	f.p.PortsChanged()
}

func (f *rig) setView() {
	var infos []openflow.PortInfo
	udpPort := map[uint32]uint16{}
	for _, info := range f.infos {
		if info.No != 0 {
			infos, udpPort[info.No] = append(infos, info), 4789
		}
	}
	f.p.SetView(NewView(infos, udpPort))
}

func (f *rig) worker() *workertest.Worker { return f.fake }

func (f *rig) settle() {
	f.t.Helper()
	waitfor.True(f.t, "no frame waits", func() bool { return f.worker().Waiting() == 0 })
}

// withoutEngine calls do while the workers are marked as gone.
func (f *rig) withoutEngine(do func()) {
	f.change.Lock() // waits for an engine that is starting
	f.p.mu.Lock()
	present := f.p.workers
	gone := workers.New(present.Memory(), nil)
	gone.MarkGone()
	f.p.workers = gone
	f.p.mu.Unlock()
	f.change.Unlock()
	do()
	f.p.mu.Lock()
	defer f.p.mu.Unlock()
	f.p.workers = present
}

// changing waits until the lock of changes has been held for 20 ms.
func (f *rig) changing() {
	f.t.Helper()
	held := 0 // in ms
	waitfor.True(f.t, "the workers are not replaced while a change waits for them", func() bool {
		if held++; f.change.TryLock() {
			f.change.Unlock()
			held = 0
		}
		return held == 20
	})
}

func udpKey(port, src, dst uint32, tpDst uint16) flowtable.Key {
	var k flowtable.Key
	k[flowtable.WPort] = uint64(port) << 32
	k[flowtable.WEthDst] = (0x020000000000|uint64(dst))<<16 | 0x0800
	k[flowtable.WEthSrc] = (0x020000000000 | uint64(src)) << 16
	k[flowtable.WIP] = 17<<56 | 64<<40
	k[flowtable.WL4] = 1000<<48 | uint64(tpDst)<<32
	k[flowtable.WIPv4] = uint64(0x0a000000|src)<<32 | uint64(0x0a000000|dst)
	return k
}

func (f *rig) add(flows ...string) {
	f.t.Helper()
	if _, err := f.p.ChangeFlows(api.ChangeFlows{Op: "add", Text: strings.Join(flows, "\n"), File: true}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *rig) counts() map[string]string {
	f.t.Helper()
	flows, err := f.p.DumpFlows("", ByName)
	if err != nil {
		f.t.Fatal(err)
	}
	counts := map[string]string{}
	for _, fl := range flows {
		counts[fl.Match] = fmt.Sprint(fl.Packets, "/", fl.Bytes)
	}
	return counts
}

func (f *rig) want(match, count string) {
	f.t.Helper()
	if got := f.counts()[match]; got != count {
		f.t.Errorf("flow %q counts %s, want %s; all: %v", match, got, count, f.counts())
	}
}
