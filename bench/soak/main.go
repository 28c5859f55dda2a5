// SPDX-License-Identifier: Apache-2.0

// Command soak kills the switch repeatedly while frames flow between two guests, and
// prints the length of each pause and the lost frames. It fails if a descriptor is
// lost or used twice, if a frame's contents change, or if pauses exceed the limit.
//
//	go run ./bench/soak -kills 1000
//	go run ./bench/soak -upgrades 1000
//
// The guests belong to the load generator of package vhosttest and are attached
// through vhost-user. Each kill is a SIGKILL of the engine, of the control process,
// or of both at once. With -upgrades, the switch is upgraded instead, to and fro
// between two builds: see upgrade.go.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"weft/bench/stream"
	"weft/internal/cpu"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

var (
	kills     = flag.Int("kills", 100, "how often to kill")
	victim    = flag.String("victim", "engine", "engine, control, both, or any: one of them at random")
	minimum   = flag.Duration("least", 220*time.Millisecond, "least time from the end of a pause to the next kill: control lets the successor of an engine that dies young wait")
	spread    = flag.Duration("spread", 100*time.Millisecond, "random time on top of it")
	packed    = flag.Bool("packed", false, "packed rings")
	flowCount = flag.Int("flows", 16, "flows of the load")
	size      = flag.Int("size", 64, "bytes of a frame")
	bin       = flag.String("bin", "", "folder of weftd and weft; built if empty")
	core      = flag.String("core", "other", "core of the load: a number, any, or other: one that is not the worker's, where this whole program then stays, as a user does who leaves the worker its core")
	limit     = flag.Duration("limit", 50*time.Millisecond, "how long a pause after the engine's death may be")
	verbose   = flag.Bool("v", false, "print every kill, and the end of what the switch has logged")
	idle      = flag.Duration("idle", 5*time.Second, "how long to measure what the machine alone costs a plain loop, first")
	within    = flag.Float64("within", 1, "share of the pauses that must keep the limit")

	upgradeCount = flag.Int("upgrades", 0, "how often to upgrade to another build, instead of kills; a train of pings and a TCP connection run, too")
	between      = flag.String("between", "", "two folders with weftd and weft of different versions, separated by a comma, for -upgrades; built if empty")
	asJSON       = flag.Bool("json", false, "print the result of -upgrades as JSON")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	measure := run
	if *upgradeCount > 0 {
		measure = runUpgrades
	}
	ok, err := measure(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if !ok {
		os.Exit(1)
	}
}

func run(ctx context.Context) (ok bool, err error) {
	spin(*idle)
	dir, err := os.MkdirTemp("", "weft-soak")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(dir)
	return onSwitch(ctx, dir, *bin, func(s *weft, c *connection) (bool, error) { return runKills(ctx, s, c) })
}

// onSwitch calls measure with a new switch of the programs in bin, and a load on two ports.
func onSwitch(ctx context.Context, dir, bin string, measure func(*weft, *connection) (bool, error)) (ok bool, err error) {
	s, err := newSwitch(ctx, dir, bin)
	if err != nil {
		return false, err
	}
	defer s.stop()
	load, err := newLoad()
	if err != nil {
		return false, err
	}
	defer load.Close()
	if err := addPorts(s, dir); err != nil {
		return false, err
	}
	c := &connection{dir: dir, load: load}
	defer c.close()
	return measure(s, c)
}

func runKills(ctx context.Context, s *weft, c *connection) (ok bool, err error) {
	pin, err := c.begin(s)
	if err != nil {
		return false, err
	}
	g := stream.Start(c.load, stream.Config{Core: pin})
	if err := flows(s, g); err != nil {
		g.End()
		return false, err
	}
	time.Sleep(time.Second) // time for the new switch to start a spare engine
	g.Begin()
	if err := s.refresh(); err != nil {
		return false, err
	}
	clear(s.drops)
	pauses, err := soak(ctx, s, g, c)
	time.Sleep(300 * time.Millisecond)
	counted := g.End()
	if err != nil {
		return false, fmt.Errorf("%w\n%s", err, s.output())
	}
	if err := s.refresh(); err != nil {
		return false, err
	}
	if *verbose {
		ports, _ := s.run("dump-ports")
		fmt.Println(string(ports))
		fmt.Println(s.output())
	}
	return report(counted, pauses, s.drops), nil
}

// loadCore returns the core of the load generator, or -1 for any core. word is the
// value of the option -core.
func loadCore(word string, worker int) (int, error) {
	if word == "any" {
		return -1, nil
	}
	allowed, err := cpu.Allowed()
	if err != nil {
		return 0, err
	}
	if word == "other" {
		i := slices.IndexFunc(allowed, func(c int) bool { return c != worker })
		if i < 0 {
			return -1, nil // the machine has only one core
		}
		if *victim == "engine" && *upgradeCount == 0 { // otherwise this process also starts control, which needs all cores
			err = cpu.Confine([]int{worker})
		}
		return allowed[i], err
	}
	c, err := strconv.Atoi(word)
	if err != nil || !slices.Contains(allowed, c) {
		return 0, fmt.Errorf("-core %s: expected any, other, or one of the cores %v", word, allowed)
	}
	return c, nil
}

func coreName(core int) string {
	if core < 0 {
		return "any core"
	}
	return fmt.Sprint("core ", core)
}

func newLoad() (*vhosttest.Load, error) {
	features := uint64(vhost.FeatureVersion1 | vhost.FeatureMergeable)
	if *packed {
		features |= vhost.FeatureRingPacked
	}
	return vhosttest.NewLoad(vhosttest.LoadConfig{Check: true, Repeats: true, Flows: *flowCount, FrameSize: *size, InFlight: 64, Features: features, Core: -1})
}

func addPorts(s *weft, dir string) error {
	for _, name := range []string{"a", "b"} {
		if err := s.command("add-port", name, "type=vhost-user", "mode=server", "path="+filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, flow := range []string{"in_port=a,actions=output:b", "in_port=b,actions=output:a"} {
		if err := s.command("add-flow", flow); err != nil {
			return err
		}
	}
	return nil
}

// connection has the guests' front ends.
type connection struct {
	dir    string
	load   *vhosttest.Load
	fronts []*vhosttest.FrontEnd
}

func (c *connection) open(attach func(*vhosttest.FrontEnd, *vhosttest.Guest) error) error {
	for i, name := range []string{"a", "b"} {
		f, err := vhosttest.Dial(filepath.Join(c.dir, name))
		if err != nil {
			return err
		}
		c.fronts = append(c.fronts, f)
		if err := attach(f, c.load.Guests[i]); err != nil {
			return err
		}
	}
	return nil
}

// begin attaches the guests, and returns the core of the load generator, or -1 for any.
func (c *connection) begin(s *weft) (pin int, err error) {
	if err := c.open((*vhosttest.FrontEnd).Attach); err != nil {
		return 0, err
	}
	pin, err = loadCore(*core, s.worker)
	if err == nil {
		fmt.Fprintf(os.Stderr, "worker on core %d, load on %s, %s rings\n", s.worker, coreName(pin), rings())
	}
	return pin, err
}

// flows waits until the guests of g receive frames.
func flows(s *weft, g *stream.Stream) error {
	for end := time.Now().Add(patience); g.Totals().Received == 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("nothing flows between the guests:\n%s", s.output())
		}
	}
	return nil
}

func (c *connection) close() {
	for _, f := range c.fronts {
		f.Close()
	}
	c.fronts = nil
}

func (c *connection) reconnect(g *stream.Stream) error {
	return g.Do(func() error {
		c.close()
		return c.open((*vhosttest.FrontEnd).AttachAgain)
	})
}

const patience = 10 * time.Second

// dies is the longest time after a kill in which frames still arrive. A pause that
// begins later has another cause.
const dies = 20 * time.Millisecond

func soak(ctx context.Context, s *weft, g *stream.Stream, c *connection) (map[string][]pause, error) {
	pauses := map[string][]pause{}
	victims := []string{*victim}
	if *victim == "any" {
		victims = []string{"engine", "control", "both"}
	}
	for n := range *kills {
		if ctx.Err() != nil {
			break
		}
		who := victims[rand.IntN(len(victims))]
		p, err := measureOnce(s, g, c, who)
		if err != nil {
			return pauses, fmt.Errorf("kill %d, of %s: %w", n+1, who, err)
		}
		if *verbose {
			fmt.Printf("%5d %-8s %v\n", n+1, who, &p)
		}
		pauses[who] = append(pauses[who], p)
	}
	return pauses, nil
}

func measureOnce(s *weft, g *stream.Stream, c *connection, processes string) (pause, error) {
	if err := s.refresh(); err != nil {
		return pause{}, err
	}
	before, old, control := s.gaps, s.engine, s.control.Process.Pid
	base := g.Now()
	waited := waits(control)
	g.Watch()
	killed := time.Now()
	if err := s.kill(processes); err != nil {
		return pause{}, err
	}
	if processes == "both" {
		if err := c.reconnect(g); err != nil {
			return pause{}, err
		}
	}
	p := pause{}
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		if _, _, _, arrived := g.Pause(killed); arrived.Sub(killed) > dies || processes == "control" {
			break
		}
		if time.Now().After(end) {
			return pause{}, fmt.Errorf("no frame has come for %v", patience)
		}
	}
	if processes == "engine" {
		p.control = longestWait(waited, waits(control))
	}
	if err := s.refresh(); err != nil {
		return pause{}, err
	}
	if s.engine != old {
		p.worker = workerWait(s.engine, s.worker)
	}
	time.Sleep(*minimum + rand.N(*spread))
	if err := s.refresh(); err != nil {
		return pause{}, err
	}
	p.Duration, p.later, p.own, _ = g.Pause(killed.Add(dies))
	p.stall = stall(before, s.gaps)
	t := g.Now()
	p.repeated = t.Repeated - base.Repeated
	p.lost = t.Lost - base.Lost + int64(p.repeated)
	if processes == "engine" {
		p.replaced, p.workers = s.replaced()
	}
	return p, nil
}
