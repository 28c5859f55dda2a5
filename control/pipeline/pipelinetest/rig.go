// SPDX-License-Identifier: Apache-2.0

// Package pipelinetest makes pipelines for tests. The test simulates the only worker. Ports have no
// devices, and the state is on a temporary disk.
package pipelinetest

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/control/change"
	"weft/control/change/changetest"
	"weft/control/counters"
	"weft/control/limits"
	"weft/control/macs"
	"weft/control/pipeline"
	"weft/control/store"
	"weft/control/underlay"
	"weft/control/workers"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/engine"
	"weft/flowtable"
	"weft/internal/waitfor"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// Rig is a pipeline with ports without devices, and with one worker that the test simulates.
type Rig struct {
	T             testing.TB
	dir           string
	Configuration change.Configuration
	declared      pipeline.Declared
	Store         pipeline.Store
	Disk          *store.Store // of the present control process
	kernel        *underlay.Kernel
	P             *pipeline.Pipeline // nil: no control process
	MACs          *macs.MACs         // of P
	templates     *underlay.Templates
	region        *counters.Region
	memory        *engine.Memory // nil: no engine
	fake          *workertest.Worker
	ended         chan struct{}    // closed when the engine has died
	Infos         []xlate.PortInfo // ports in order of their numbers; an entry with number 0 stands for no port
	stop          context.CancelFunc
	stopped       sync.WaitGroup
	replacing     sync.WaitGroup
}

// Sizes has the sizes of the tables and rings of the engines that a Rig starts.
var Sizes = datapath.Sizes{
	Cache: flowtable.Sizes{Megaflows: 1024, Exact: 1024, Masks: 16, Actions: 8192},
	Held:  256, CommandRing: 1 << 18, UpcallRing: 1 << 18, Templates: underlay.MaxTemplates,
}

// NoMonitors is a pipeline.Monitors that ignores every call.
type NoMonitors struct{}

func (NoMonitors) Count() int                                                        { return 0 }
func (NoMonitors) TellFlow(time.Time, pipeline.Event, *ofproto.Rule, openflow.Names) {}

// New returns a Rig with a running control process and a running engine.
func New(t testing.TB) *Rig { return NewDeclared(t, nil) }

// NewDeclared is like New. declared receives the events of declared ports.
func NewDeclared(t testing.TB, declared pipeline.Declared) *Rig {
	t.Helper()
	f := &Rig{T: t, dir: t.TempDir(), declared: declared}
	f.Begin()
	t.Cleanup(f.End)
	return f
}

// Begin starts a control process. It also starts an engine, unless an engine is still
// running.
func (f *Rig) Begin() {
	f.T.Helper()
	check := func(err error) {
		f.T.Helper()
		if err != nil {
			f.T.Fatal(err)
		}
	}
	var err error
	f.Disk, err = store.Open(f.dir)
	check(err)
	f.Store = f.Disk
	f.kernel, err = underlay.Open(slog.New(slog.DiscardHandler))
	check(err)
	f.templates = underlay.NewTemplates(f.kernel, slog.New(slog.DiscardHandler))
	f.P = pipeline.New(pipeline.Setup{Configuration: &f.Configuration, Store: storeOf{f}, Templates: f.templates, Monitors: NoMonitors{},
		Declared: f.declared, Sizes: Sizes.Cache, Log: slog.New(slog.DiscardHandler)})
	f.MACs = macs.New(&f.Configuration, f.P, f.Disk, slog.New(slog.DiscardHandler))
	tx := f.Configuration.Begin()
	defer tx.Commit()
	saved, err := f.Disk.Load()
	check(err)
	for _, b := range saved.Bridges {
		f.P.AddBridge(tx, b.Number, b.Name)
	}
	if f.memory == nil {
		f.region, err = counters.New(Sizes.Cache.Megaflows)
		check(err)
		f.P.Load(tx, &saved, f.region, false)
		f.SetView(tx)
		f.startEngine(tx)
	} else {
		fd, err := unix.Dup(f.region.FD())
		check(err)
		f.region, err = counters.Open(fd, Sizes.Cache.Megaflows)
		check(err)
		f.P.Load(tx, &saved, f.region, true)
		f.P.Inherit(tx, workers.New(f.memory, f.ended))
		f.SetView(tx)
		f.MACs.Load()
		f.P.Resume(tx)
	}
	check(f.P.AnswerUpcalls(func(uint32, string) {}))
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.stopped.Go(func() { f.P.Run(ctx) })
}

// startEngine gives the pipeline an engine with one worker.
func (f *Rig) startEngine(tx *change.Tx) {
	memory, err := engine.NewMemory(engine.Start{Cores: []int{0}, Sizes: Sizes}, nil)
	if err != nil {
		f.T.Fatal(err)
	}
	f.memory, f.ended = memory, make(chan struct{})
	f.fake = workertest.New(memory.Shared[0], memory.UpcallEvent, f.ended)
	w := workers.New(memory, f.ended)
	if f.P.Workers() != nil {
		f.P.EndUpcalls(tx)
		f.P.Replace(tx, w)
	}
	f.templates.Replay(w, f.region.Tunnels)
	f.P.Fill(tx, w)
}

// Kill ends the engine. Another engine starts in the background as soon as the configuration
// lock is free.
func (f *Rig) Kill() {
	close(f.ended)
	f.replacing.Go(f.replace)
}

// replace starts an engine after the end of the present one.
func (f *Rig) replace() {
	tx := f.Configuration.Begin()
	defer tx.Commit()
	old, fake := f.memory, f.fake
	f.startEngine(tx)
	if err := f.P.AnswerUpcalls(func(uint32, string) {}); err != nil {
		f.T.Error(err)
	}
	fake.Wait()
	old.Close()
}

// Die ends the control process. The engine continues.
func (f *Rig) Die() {
	f.replacing.Wait()
	f.stop()
	f.stopped.Wait()
	f.Configuration.Do(f.P.EndUpcalls)
	f.kernel.Close()
	if err := f.Disk.Close(); err != nil {
		f.T.Fatal(err)
	}
	f.P = nil
}

// End ends the control process and the engine.
func (f *Rig) End() {
	if f.P == nil {
		return
	}
	f.Die()
	close(f.ended)
	f.fake.Wait()
	f.memory.Close()
	f.memory = nil
}

// storeOf is the Store of the pipeline. It passes each call on to the present Rig.Store, so that a
// test can replace the store.
type storeOf struct{ f *Rig }

func (s storeOf) ChangeFlows(tx *change.Tx, save iter.Seq[store.Flow], remove []uint32) {
	s.f.Store.ChangeFlows(tx, save, remove)
}

func (s storeOf) WriteFlows(save iter.Seq[store.Flow], remove []uint32) error {
	return s.f.Store.WriteFlows(save, remove)
}

func (s storeOf) ReplaceGroups(tx *change.Tx, groups, meters map[store.Key]string) {
	s.f.Store.ReplaceGroups(tx, groups, meters)
}

func (s storeOf) SaveTLVs(tx *change.Tx, texts map[store.Key]string) { s.f.Store.SaveTLVs(tx, texts) }

func (s storeOf) SaveTableConfigs(tx *change.Tx, texts map[store.Key]string) {
	s.f.Store.SaveTableConfigs(tx, texts)
}

// VXLANPorts adds the VXLAN tunnel ports p1 to pn, with the numbers 1 to n.
func (f *Rig) VXLANPorts(n int) {
	tx := f.Configuration.Begin()
	defer tx.Commit()
	for i := range n {
		f.Infos = append(f.Infos, xlate.PortInfo{No: uint32(i + 1), Name: fmt.Sprintf("p%d", i+1),
			Kind: xlate.PortTunnel, VNI: 1, Remote: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})})
	}
	f.SetView(tx)
	f.P.PortsChanged(tx)
}

// DeletePort removes a port.
func (f *Rig) DeletePort(number uint32) {
	tx := f.Configuration.Begin()
	defer tx.Commit()
	f.Infos[number-1].No = 0
	f.SetView(tx)
	f.P.Addresses().Forget(number)
	f.P.PortsChanged(tx)
}

// SetView gives the pipeline the ports in f.Infos, except those with number 0.
func (f *Rig) SetView(tx *change.Tx) {
	var infos []xlate.PortInfo
	udpPort := map[uint32]uint16{}
	for _, info := range f.Infos {
		if info.No != 0 {
			infos, udpPort[info.No] = append(infos, info), 4789
		}
	}
	slices.SortFunc(infos, func(a, b xlate.PortInfo) int {
		return cmp.Or(cmp.Compare(a.Bridge, b.Bridge), cmp.Compare(a.No, b.No))
	})
	f.P.SetView(tx, pipeline.NewView(infos, udpPort))
}

// Worker returns the present engine's worker.
func (f *Rig) Worker() *workertest.Worker { return f.fake }

// Settle waits until the pipeline has handled all frames that the worker held for the control process.
func (f *Rig) Settle() {
	f.T.Helper()
	waitfor.True(f.T, "no frame waits", func() bool { return f.Worker().Waiting() == 0 })
}

// WithoutEngine calls fn after the death of the engine, and then starts another engine.
func (f *Rig) WithoutEngine(fn func()) {
	tx := f.Configuration.Begin() // waits for an engine that is starting
	close(f.ended)
	f.fake.Wait() // a dead engine applies no command
	tx.Commit()
	fn()
	f.replace()
}

// Changing returns after somebody has held the configuration lock for 20 ms.
func (f *Rig) Changing() {
	f.T.Helper()
	waitfor.True(f.T, "the workers are not replaced while a change waits for them", func() bool {
		return changetest.Held(&f.Configuration)
	})
}

// Add adds flows, which have the text form of ovs-ofctl. An error ends the test.
func (f *Rig) Add(flows ...string) {
	f.T.Helper()
	f.Apply(openflow.Add, flows...)
}

// Apply applies changes of flows, which have the text form of ovs-ofctl. An error ends the test.
func (f *Rig) Apply(command openflow.Command, flows ...string) {
	f.T.Helper()
	err := f.Configuration.Update(func(tx *change.Tx) error {
		mods, err := openflow.ParseFlowMods(strings.Join(flows, "\n"), command, f.P.View())
		if err == nil {
			_, err = f.P.Apply(tx, mods)
		}
		return err
	})
	if err != nil {
		f.T.Fatal(err)
	}
}

// Rules returns copies of the selected rules with present statistics.
func (f *Rig) Rules(match string) (rules []ofproto.Rule) {
	f.T.Helper()
	tx := f.Configuration.Begin()
	defer tx.Commit()
	filter, err := openflow.ParseFilter(match, f.P.View())
	if err != nil {
		f.T.Fatal(err)
	}
	f.P.PullCounts(tx)
	f.P.Read(func(tables *ofproto.Tables) {
		for _, r := range tables.Select(&filter) {
			rules = append(rules, *r)
		}
	})
	return rules
}

// Counts returns the counters of each flow as text, packets/bytes. The key of the map
// is the flow's match.
func (f *Rig) Counts() map[string]string {
	f.T.Helper()
	counts := map[string]string{}
	for _, r := range f.Rules("") {
		counts[r.Match.Format(f.P.View())] = fmt.Sprint(r.Packets, "/", r.Bytes)
	}
	return counts
}

// Want fails the test unless the flow with this match has the counts in count, as packets/bytes.
func (f *Rig) Want(match, count string) {
	f.T.Helper()
	if got := f.Counts()[match]; got != count {
		f.T.Errorf("flow %q counts %s, want %s; all: %v", match, got, count, f.Counts())
	}
}

// Used returns the amount that a holder uses of the resource called name, or 0 if there is no limit row
// for them.
func (f *Rig) Used(name string, holder limits.Holder) (used uint64) {
	f.P.LimitRows(func(r limits.Row) {
		if r.Name == name && r.Holder == holder {
			used = r.Used
		}
	})
	return used
}
