// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"weft/e2e/lab"
	"weft/vhost/vhosttest"
)

// A storm plays random attacks, several at a time. Meanwhile it kills the engine and control processes,
// changes flows, and detaches and attaches the bystanders, the two guests that the attacks must not
// harm. One seed determines all random choices, but not the outcome of races.

const (
	// mostMemory is the memory limit of a process after a storm, in bytes.
	mostMemory   = 2 << 30
	stormPlayers = 4
	stormStep    = 200 * time.Millisecond
	// progressEvery is the time between two lines on stderr that report the progress of a storm.
	progressEvery = time.Minute
	// A step of a storm kills processes with probability 1/oneInKill. Otherwise it detaches and
	// attaches a guest with probability 1/oneInMove. Otherwise it stops processes for a while with
	// probability 1/oneInStall.
	oneInKill, oneInMove, oneInStall = 20, 30, 30
	// longestStall limits the time for which a step stops the control process, or the control process
	// and the engine.
	longestStall = 3 * time.Second
)

type stormResult struct {
	Seconds float64        `json:"seconds"`
	Seed    uint64         `json:"seed"`
	Plays   map[string]int `json:"plays"` // how often each attack was played
	Goes    int            `json:"goes"`  // repeats of all attacks together
	// repeats that failed, because of a kill or another attack
	Broken int            `json:"broken"`
	Kills  map[string]int `json:"kills"` // kills by victim: "engine", "control" or "both"
	// Pauses has the pauses in which the two guests received no frame, in a series of kills or upgrades
	// (series.go). It is nil in a storm.
	Pauses *quantiles `json:"pauses,omitempty"`
	Moves  int        `json:"moves"` // how often a bystander was detached and attached again
	// how often the control process, or it and the engine, were stopped for a while
	Stalls int `json:"stalls"`
	Flows  int `json:"flows"` // how often the storm has added or deleted a flow

	Received uint64 `json:"received"`
	Lost     int64  `json:"lost"`
	// Drops has the increase of the drop counters at the ports of the two guests that do not attack, by
	// reason. The transmit drops (tx-full, not-attached) include attackers' frames.
	Drops map[string]uint64 `json:"drops"`
	// TxDropped is how many of the transmit drops were not attackers' frames.
	TxDropped int64 `json:"tx_dropped"`
	// Uncountable is the number of frames that were lost and not counted because the control process
	// was killed while it replaced an engine. The engine then ends too. Its drop counters, and the
	// frames that waited in it, are lost.
	Uncountable int64  `json:"uncountable"`
	Again       uint64 `json:"again"`
	Bad         int    `json:"bad"`
	Wrong       int64  `json:"wrong"`

	// Part is the number of frames that the bystanders got, divided by Wanted, the number that they
	// asked for. Kills, moves and stalls by the storm itself do not lower it.
	Part   float64 `json:"part"`
	Wanted uint64  `json:"wanted"`

	Restarts uint64 `json:"engines_replaced"` // number of replaced engines, including killed ones
	// Unkilled is the number of engines that ended although the storm did not kill them: they hung or
	// ended in an attack. Timeline has the reasons.
	Unkilled uint64     `json:"engines_replaced_by_control"`
	Timeline []incident `json:"timeline,omitempty"`
	PauseMS  float64    `json:"pause_ms"` // longest pause without a kill, move or stall
	// KilledMS has the bystanders' longest pause by event: a kill of the engine, of the control process
	// or of both, a move of a bystander, an upgrade, a stall. From a stall of both processes, the time
	// for which the storm stopped them is subtracted.
	KilledMS  map[string]float64 `json:"killed_ms"`
	MachineMS float64            `json:"machine_ms"`
	Control   [2]usage           `json:"control"`
	Engine    [2]usage           `json:"engine"`
	Memory    int64              `json:"memory"` // memory in bytes of the larger of both processes after the storm
	Faults    []string           `json:"faults,omitempty"`
}

type storming struct {
	*site
	rng  *rand.Rand
	list []*attack
	seen map[string]uint64 // drop counters of the bystanders' ports at the last refresh
	// txDrops is the sum of the transmit drops in r.Drops.
	txDrops int64
	reset   bool   // a drop counter has restarted at 0 since this was last cleared
	last    uint64 // number of replaced engines that the control process had counted at the last refresh
	stop    chan struct{}
	// settled has the counts that the last call of settle has checked.
	settled balance
	audit   audit
	// ports is the number of the switch's ports without those of attackers.
	ports int
	// pause is the longest time without a frame at the two guests during the last kill, move, stall or
	// upgrade.
	pause      time.Duration
	machine    *machine // nil: not measured
	begun      time.Time
	controlLog controlLog
	lastDemand demand // of the bystanders, at the end of the last step or event
	moved      uint64 // frames that the bystanders got outside of events

	mu   sync.Mutex
	busy map[string]bool // attacks in progress, by name
	r    stormResult
}

// balance has numbers of frames between the two guests that do not attack, since the start.
type balance struct {
	lost    int64
	counted int64 // the result of storming.counted
	txDrops int64 // drops when the switch sent to a bystander, including attackers' frames
}

func runStorm(d time.Duration, seed uint64, list []*attack) (ok bool, err error) {
	r, err := storms(d, seed, list, *workers)
	if r.Part < promised.part && err == nil {
		r.Faults = append(r.Faults, fmt.Sprintf("the bystanders got %.2f of what they asked for within their fair share, the limit is %.2f", r.Part, promised.part))
	}
	if err != nil {
		return false, err
	}
	return r.print()
}

func (r *stormResult) print() (ok bool, err error) {
	text, err := json.MarshalIndent(r, "", "  ")
	fmt.Println(string(text))
	return len(r.Faults) == 0, err
}

func storms(d time.Duration, seed uint64, list []*attack, workers int) (r stormResult, err error) {
	defer lab.Caught(&err)
	l := lab.New(lab.Program{})
	defer l.Close()
	w := newStorm(l, seed, siteConfig{workers: workers, paced: true})
	defer w.close()
	for _, a := range list {
		if a.uplink == "" && !a.exclusive {
			w.list = append(w.list, a)
		}
	}
	if err := w.begin(); err != nil {
		return r, err
	}
	w.machine = watchMachine()
	var players sync.WaitGroup
	for i := range stormPlayers {
		players.Add(1)
		go func() {
			defer players.Done()
			w.player(rand.New(rand.NewPCG(seed, uint64(i+1))))
		}()
	}
	begin := time.Now()
	w.begun, w.lastDemand = begin, w.stream.demandSoFar()
	for reported := begin; time.Since(begin) < d && len(w.r.Faults) == 0; {
		w.step()
		if time.Since(reported) >= progressEvery {
			reported = time.Now()
			w.progress(time.Since(begin), d)
		}
	}
	close(w.stop)
	players.Wait()
	w.r.Seconds, w.r.MachineMS = time.Since(begin).Seconds(), ms(w.machine.end())
	w.r.Part = float64(w.moved) / float64(max(w.r.Wanted, 1))
	w.end()
	if len(w.r.Faults) > 0 {
		fmt.Fprintln(os.Stderr, w.log())
	}
	return w.r, nil
}

func newStorm(l *lab.Lab, seed uint64, c siteConfig) *storming {
	c.uplink, c.strict = "af_xdp", true
	return &storming{site: newSite(l, c), rng: rand.New(rand.NewPCG(seed, 0)),
		seen: map[string]uint64{}, stop: make(chan struct{}), busy: map[string]bool{},
		r: stormResult{Seed: seed, Plays: map[string]int{}, Kills: map[string]int{}, KilledMS: map[string]float64{}, Drops: map[string]uint64{}}}
}

func (w *storming) begin() error {
	show, err := w.client.Show()
	if err != nil {
		return err
	}
	w.ports = len(show.Ports)
	w.r.Control[0], w.r.Engine[0] = usageOf(show.PID), usageOf(show.EnginePID)
	w.stream.beginStill(w.heldFrames)
	if err := w.refresh(); err != nil {
		return err
	}
	clear(w.r.Drops)
	w.txDrops = 0
	return nil
}

func (w *storming) step() {
	time.Sleep(stormStep)
	w.changeFlow()
	calm := w.stream.longest()
	w.r.PauseMS = max(w.r.PauseMS, ms(calm))
	w.stream.watch()
	w.noteDemand()
	var err error
	event, restarts, all, before := "", w.last, w.r.Restarts, w.processes()
	late := w.machine.lately()
	switch {
	case w.rng.IntN(oneInKill) == 0:
		who := []string{"engine", "control", "both"}[w.rng.IntN(3)]
		event = "kill of " + who
		err = w.kill(who)
	case w.rng.IntN(oneInMove) == 0:
		event = "move"
		err = w.move(w.rng.IntN(2))
	case w.rng.IntN(oneInStall) == 0:
		engine := 0
		if event = "stall of control"; w.rng.IntN(2) == 0 {
			engine, event = w.daemon.EnginePID(), "stall of both"
		}
		err = w.stall(engine, time.Duration(w.rng.Int64N(int64(longestStall))))
	}
	if err == nil {
		err = w.refresh()
	}
	if err != nil {
		w.fault("%v", err)
	}
	w.noteStep(event, before, w.r.Restarts-all, calm, late)
	t := w.stream.totals()
	w.audit.step(fmt.Sprintf("%s; engines replaced %d, then %d; %v", event, restarts, w.last, w.r.Drops), t.Lost+int64(t.Repeated)-w.counted())
	if t.Misused > 0 {
		w.fault("%d buffers of the bystanders are lost or used twice", t.Misused)
	}
}

// noteDemand adds the frames that the two guests have asked for and got since the last event or step to
// the result of the storm.
func (w *storming) noteDemand() {
	now := w.stream.demandSoFar()
	w.r.Wanted += now.wanted - w.lastDemand.wanted
	w.moved += now.moved - w.lastDemand.moved
	w.lastDemand = now
}

// noteStep ends a step. It adds the step to the timeline if the step had an event, or if an engine has
// ended without being killed by the storm. "number" is the number of engines that have ended in the
// step. "pause" is the longest time without a frame at the two guests before the event. "delay" is the
// longest delay of a timer on this machine before the event.
func (w *storming) noteStep(event string, oldProcesses processes, number uint64, pause, delay time.Duration) {
	if event != "" {
		w.lastDemand, pause, delay = w.stream.demandSoFar(), w.pause, w.machine.lately()
	}
	unkilled := w.countUnkilled(event, number)
	w.noteIncident(&incident{Event: event, PauseMS: ms(pause), MachineMS: ms(delay)}, oldProcesses, unkilled > 0)
}

// countUnkilled returns how many engines have ended in a step without being killed by the storm, and
// adds them to the result. "number" is the number of all engines that have ended.
func (w *storming) countUnkilled(event string, number uint64) (unkilled uint64) {
	if unkilled = number; event == "kill of engine" && number > 0 {
		unkilled--
	}
	w.r.Unkilled += unkilled
	return unkilled
}

func (w *storming) progress(elapsed, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	plays, kills := 0, 0
	for _, n := range w.r.Plays {
		plays += n
	}
	for _, n := range w.r.Kills {
		kills += n
	}
	t := w.stream.totals()
	fmt.Fprintf(os.Stderr, "%v of %v: %d attacks, %d kills, %d moves, %d frames received, %d to a wrong guest\n",
		elapsed.Round(time.Second), d, plays, kills, w.r.Moves, t.Received, w.r.Wrong)
}

func (w *storming) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.r.Faults = append(w.r.Faults, fmt.Sprintf(format, args...))
}

// changeFlow adds or deletes a flow. No frame's path changes by it.
func (w *storming) changeFlow() {
	match := fmt.Sprintf("in_port=a,udp,tp_src=%d", 1024+w.rng.IntN(16))
	out := "b"
	if w.rng.IntN(2) == 0 {
		match, out = "in_port=b,udp,tp_src="+fmt.Sprint(1024+w.rng.IntN(16)), "a"
	}
	if w.rng.IntN(2) == 0 {
		w.daemon.TryWeft("add-flow", fmt.Sprintf("priority=%d,%s,actions=output:%s", 200+w.rng.IntN(3), match, out))
	} else {
		w.daemon.TryWeft("del-flows", match)
	}
	w.r.Flows++
}

// kill kills the engine, the control process or both. It waits until the guests receive frames again.
func (w *storming) kill(processes string) error {
	w.r.Kills[processes]++
	var err error
	switch processes {
	case "engine":
		if pid := w.daemon.EnginePID(); pid != 0 {
			w.daemon.KillEngine()
			for w.daemon.EnginePID() == pid { // until it is dead, the worker may forward more frames
				time.Sleep(100 * time.Microsecond)
			}
		}
	case "control":
		if err = w.refresh(); err != nil {
			return err
		}
		err = w.restartControl()
	// held frames and drop counters are lost with both processes, so no frame may be in flight or held
	// now
	case "both":
		err = w.stream.whenStill(w.heldFrames, func() error {
			if err := w.refresh(); err != nil {
				return err
			}
			w.settle(w.stream.counted().Lost)
			w.daemon.Control().Kill()
			if w.daemon.EnginePID() != 0 {
				w.daemon.KillEngine()
			}
			w.daemon.Start()
			clear(w.seen)
			w.last = 0
			return w.attachBystanders((*vhosttest.FrontEnd).AttachAgain)
		})
		if errors.Is(err, errBusy) { // no kill: the switch holds frames while it replaces an engine
			w.r.Kills[processes]--
			err = nil
		}
	}
	if err == nil {
		err = w.circulates()
	}
	w.notePause("kill of "+processes, 0)
	if err != nil {
		return fmt.Errorf("kill of %s: %w", processes, err)
	}
	return nil
}

// notePause records the longest time without a frame at the two guests since the last call of watch.
// "stopped" is the part of this time for which the storm itself stopped the switch.
func (w *storming) notePause(event string, stopped time.Duration) {
	w.pause = max(w.stream.longest()-stopped, 0)
	w.r.KilledMS[event] = max(w.r.KilledMS[event], ms(w.pause))
	w.stream.watch()
}

// restartControl kills the control process and starts it again. If the process was replacing an engine,
// the engine is dead then, too. The bystanders' sessions, the engine's drop counters and the frames
// that it held are lost. restartControl then attaches the bystanders again.
func (w *storming) restartControl() error {
	engine := w.daemon.EnginePID()
	w.daemon.Control().Kill()
	w.daemon.Start()
	w.last, w.reset = 0, false
	if err := w.refresh(); err != nil {
		return err
	}
	dead := w.daemon.EnginePID() != engine
	if dead {
		err := w.stream.do(func() error { return w.attachBystanders((*vhosttest.FrontEnd).AttachAgain) })
		if err != nil {
			return err
		}
	}
	if err := w.circulates(); err != nil {
		return err
	}
	if dead || w.reset {
		return w.countUncountable()
	}
	return nil
}

// move detaches a guest and attaches it again at the same ring positions, as a live migration does.
func (w *storming) move(i int) error {
	w.r.Moves++
	name, g := []string{"a", "b"}[i], w.load.Guests[i]
	err := w.stream.do(func() error {
		for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
			if _, err := w.fronts[i].Stop(q); err != nil {
				return nil // no fault: the switch replaces one of its processes now
			}
		}
		w.fronts[i].Close()
		var err error
		if w.fronts[i], err = w.dial(name); err != nil {
			return err
		}
		return w.fronts[i].AttachAgain(g)
	})
	if err == nil {
		err = w.circulates()
	}
	w.notePause("move", 0)
	if err != nil {
		return fmt.Errorf("stop and start of %s: %w", name, err)
	}
	return nil
}

// stall stops the control process for a while, as happens on a busy or paused machine. It also stops
// the engine if the process ID "engine" is not 0.
func (w *storming) stall(engine int, d time.Duration) error {
	w.r.Stalls++
	event, began := "stall of control", time.Now()
	w.daemon.Control().Signal(syscall.SIGSTOP)
	if engine != 0 {
		_ = syscall.Kill(engine, syscall.SIGSTOP) // error ignored: the engine may have ended
	}
	time.Sleep(d)
	if engine != 0 {
		_ = syscall.Kill(engine, syscall.SIGCONT)
	}
	w.daemon.Control().Signal(syscall.SIGCONT)
	stopped := time.Duration(0)
	if engine != 0 {
		event, stopped = "stall of both", time.Since(began)
	}
	err := w.circulates()
	w.notePause(event, stopped)
	if err != nil {
		return fmt.Errorf("stall of %v: %w", d, err)
	}
	return nil
}

func (w *storming) refresh() error {
	var err error
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		show, serr := w.client.Show()
		if err = serr; err == nil {
			for _, p := range show.Ports {
				if p.Name != "a" && p.Name != "b" {
					continue
				}
				for reason, n := range p.Stats.RxDrops {
					w.countDrops(p.Name+" "+reason, reason, n)
				}
				// The switch also drops frames here when the control process, after a pause, answers
				// more waiting frames than the receiver's ring has room for.
				for reason, n := range p.Stats.TxDropReasons {
					w.txDrops += int64(w.countDrops(p.Name+" tx "+reason, reason, n))
				}
			}
			if show.Restarts > w.last {
				w.r.Restarts += show.Restarts - w.last
			}
			w.last = show.Restarts
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("show: %w", err)
		}
	}
}

// countDrops adds to r.Drops[reason] how much a drop counter has grown since the last call, and returns
// this growth. "key" identifies the counter, and n is its present value. A counter restarts at 0 if the
// control process is killed while it replaces an engine.
func (w *storming) countDrops(key, reason string, n uint64) (increase uint64) {
	if n < w.seen[key] {
		w.seen[key], w.reset = 0, true
	}
	increase = n - w.seen[key]
	w.r.Drops[reason] += increase
	w.seen[key] = n
	return increase
}

// countUncountable counts the frames that are lost although no drop counter has them, because the
// counters were lost with the engine.
func (w *storming) countUncountable() error {
	t := w.stream.countStill(w.heldFrames)
	if err := w.refresh(); err != nil {
		return err
	}
	missing, _ := w.missing(t.Lost)
	w.r.Uncountable += missing
	w.settle(t.Lost)
	return nil
}

// missing returns the number of frames lost since the last call of settle, less those that the switch
// has counted as receive drops. txDrops is the number of transmit drops at the bystanders' ports since
// then, including attackers' frames.
func (w *storming) missing(lost int64) (missing, txDrops int64) {
	return lost - w.settled.lost - (w.counted() - w.settled.counted), w.txDrops - w.settled.txDrops
}

// settle checks that the switch has counted all frames that were lost since the last call of settle. A
// transmit drop at a bystander's port accounts for one lost frame, even if it was an attacker's frame.
// Only transmit drops since the last call count, so that earlier ones hide no loss. When settle is
// called, no frame may be in flight, and refresh must have read the drop counters.
func (w *storming) settle(lost int64) {
	missing, txDrops := w.missing(lost)
	if missing > txDrops {
		w.fault("%d frames are lost without being counted", missing-txDrops)
		w.audit.print()
	}
	w.r.TxDropped += min(max(missing, 0), txDrops)
	w.settled = balance{lost, w.counted(), w.txDrops}
}

// counted returns how many frames between the two guests the switch has counted as receive drops since
// the start. It also includes frames that were lost together with their counters.
func (w *storming) counted() int64 {
	total := w.r.Uncountable - w.txDrops
	for _, n := range w.r.Drops {
		total += int64(n)
	}
	return total
}

func (w *storming) player(rng *rand.Rand) {
	for {
		select {
		case <-w.stop:
			return
		default:
		}
		a := w.list[rng.IntN(len(w.list))]
		w.mu.Lock()
		taken := w.busy[a.name]
		w.busy[a.name] = true
		w.mu.Unlock()
		if taken {
			time.Sleep(time.Millisecond)
			continue
		}
		w.play(a, time.Duration(100+rng.IntN(3000))*time.Millisecond, rng.Uint64())
		w.mu.Lock()
		w.busy[a.name] = false
		w.mu.Unlock()
	}
}

// play plays an attack for the time d. If a repeat of the attack fails, this is no fault of the switch,
// because the storm may have killed a process.
func (w *storming) play(a *attack, d time.Duration, seed uint64) {
	p := newPlay(w.site, a, seed)
	broken := 0
	p.until = time.Now().Add(d)
	if a.setup == nil || a.setup(p) == nil {
		for !p.expired() && broken < 3 {
			if p.play(p) != nil {
				broken++
			}
			p.repeats++
		}
	} else {
		broken++
	}
	p.teardown()
	w.mu.Lock()
	w.r.Plays[a.name]++
	w.r.Goes += p.repeats
	w.r.Broken += broken
	if !a.hears {
		w.r.Wrong += p.wrong.Load()
	}
	w.mu.Unlock()
	if n := p.wrong.Load(); n > 0 && !a.hears {
		w.fault("%s: %d frames of the bystanders came to the attacker", a.name, n)
	}
}

func (w *storming) end() {
	if err := w.circulates(); err != nil {
		w.fault("%v", err)
		return
	}
	t := w.stream.countStill(w.heldFrames)
	if err := w.refresh(); err != nil {
		w.fault("%v", err)
		return
	}
	r := &w.r
	r.Received, r.Lost, r.Again, r.Bad = t.Received, t.Lost, t.Repeated, t.Bad+t.Misused
	w.settle(r.Lost)
	if r.Bad > 0 {
		w.fault("%d frames of the bystanders are not what was sent", r.Bad)
	}
	left := row{Control: r.Control, Engine: r.Engine}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if show, err := w.client.Show(); err == nil {
			left.Control[1], left.Engine[1] = usageOf(show.PID), usageOf(show.EnginePID)
		}
		// growth is no leak here: the limit of memory after a storm is mostMemory
		for _, u := range []*[2]usage{&left.Control, &left.Engine} {
			r.Memory = max(r.Memory, u[1].Bytes)
			u[1].Bytes = min(u[1].Bytes, u[0].Bytes)
		}
		if !left.leaks(0) || time.Now().After(end) {
			break
		}
	}
	if show, err := w.client.Show(); err == nil && len(show.Ports) != w.ports {
		var names []string
		for _, p := range show.Ports {
			names = append(names, p.Name)
		}
		w.fault("%d ports are left, %d were there: %s", len(show.Ports), w.ports, strings.Join(names, " "))
	}
	if r.Control, r.Engine = left.Control, left.Engine; left.leaks(0) {
		w.fault("a process holds more than before")
	}
	if r.Memory > mostMemory {
		w.fault("a process has %d MiB, the limit is %d", r.Memory>>20, mostMemory>>20)
	}
	slices.Sort(r.Faults)
}
