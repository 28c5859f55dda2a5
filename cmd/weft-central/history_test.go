// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/credentials"

	"weft/central/centraltest"
	"weft/central/pki"
	"weft/central/store"
	"weft/internal/testnet"
)

// Environment variables of TestHistory.
const (
	// historyHostsEnv is an environment variable. It is set in the process that runs in
	// the hosts' namespace.
	historyHostsEnv = "WEFT_TEST_HISTORY_HOSTS"
	// historySeedEnv and historyTimeEnv are environment variables. They choose the seed
	// and the duration of the faults, such as 5m.
	historySeedEnv = "WEFT_TEST_HISTORY_SEED"
	historyTimeEnv = "WEFT_TEST_HISTORY_TIME"
)

// historyTime is the duration of the faults, and historyShort the duration with -short. On
// a busy machine the history may still be too short after this time, see
// observations.enough. The faults then go on until it is long enough, for at most
// historyMost longer. historySettle is the time limit for the fleet to reach the declared
// state afterwards. An agent notices after at most 15 s that its hub is gone.
const (
	historyTime, historyShort = 20 * time.Second, 10 * time.Second
	historyMost               = 2 * time.Minute
	historySettle             = 2 * time.Minute
)

// historyGrace is the time for which the old host of a moved port keeps it. It is shorter than a
// central's default, because settle counts a kept port as a difference.
const historyGrace = time.Second

// historyLeast is the smallest number of writes, and of bindings, of a history that tests
// something.
const historyLeast = 20

// TestHistory runs three centrals, five hosts and several administrators, and checks
// the whole history of the store afterwards.
//
// Each central is a process with its own clock, in its own network namespace:
//
//	hosts 10.77.0.1 ── bridge ──┬── a 10.77.0.11
//	                            ├── b 10.77.0.12
//	                            └── c 10.77.0.13
//
// Meanwhile centrals are killed, stopped and started, lose their connections to each
// other, to the hosts or to all, and their clocks jump. The clock CLOCK_REALTIME
// jumps, by which certificates are valid or not; CLOCK_MONOTONIC, by which etcd's
// leases end and elections begin, never jumps on a real machine and does not jump
// here. Hosts plug and unplug ports that several of them have, and restart.
//
// All random choices come from a seed. The same seed makes the same choices; their
// times relative to each other depend on the scheduler.
//
// history_check_test.go has the invariants.
func TestHistory(t *testing.T) {
	testnet.NeedsRoot(t, "makes network namespaces")
	if os.Getenv(historyHostsEnv) == "" {
		runInHosts(t)
		return
	}
	s := newHistorySite(t)
	s.prepare()
	s.start()
	s.disturb()
	s.settle()
	s.check()
}

// historyFaults returns the duration of the faults.
func historyFaults(t *testing.T) time.Duration {
	limit := historyTime
	if testing.Short() {
		limit = historyShort
	}
	if text := os.Getenv(historyTimeEnv); text != "" {
		var err error
		if limit, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	return limit
}

// runInHosts runs the test again, in a process whose threads are all in the hosts'
// network namespace.
func runInHosts(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHistory$", "-test.v",
		fmt.Sprint("-test.timeout=", 9*time.Minute+historyFaults(t)), fmt.Sprint("-test.short=", testing.Short()))
	cmd.Env = append(os.Environ(), historyHostsEnv+"=1")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) }
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	var err error
	testnet.New(t).Do(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
}

// historySite is the fleet of TestHistory: centrals, hosts and administrators.
type historySite struct {
	t        *testing.T
	dir      string
	seed     uint64
	centrals []*historyCentral
	hosts    []*historyHost
	writers  []*historyWriter
	ca       *pki.CA
	seen     observations
	began    time.Time
	// victim is the central that has a fault now. Most further faults hit the same
	// central, because two faulty centrals of three leave no quorum.
	victim atomic.Pointer[historyCentral]
}

// historyCentral is a central that runs as a process.
type historyCentral struct {
	s      *historySite
	number int
	name   string
	ip     string
	ns     *testnet.Namespace

	mu     sync.Mutex // guards the fields below
	cmd    *exec.Cmd  // nil: killed
	ended  chan struct{}
	clock  *realtimeClock
	shift  time.Duration
	killed bool
}

func (c *historyCentral) address() string { return c.ip + ":7700" }

func (c *historyCentral) data() string { return filepath.Join(c.s.dir, c.name) }

func newHistorySite(t *testing.T) *historySite {
	s := &historySite{t: t, dir: t.TempDir(), seed: rand.Uint64(), began: time.Now()}
	if text := os.Getenv(historySeedEnv); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		s.seed = seed
	}
	t.Logf("%s=%d", historySeedEnv, s.seed)
	for i := range 3 {
		s.centrals = append(s.centrals, &historyCentral{s: s, number: i, name: string(rune('a' + i)), ip: fmt.Sprint("10.77.0.", 11+i), ns: testnet.New(t)})
	}
	s.ip("link", "add", "br0", "type", "bridge")
	s.ip("address", "add", "10.77.0.1/24", "dev", "br0")
	s.ip("link", "set", "br0", "up")
	for _, c := range s.centrals {
		s.ip("link", "add", "p-"+c.name, "type", "veth", "peer", "name", "u0", "netns", c.ns.Name)
		s.ip("link", "set", "p-"+c.name, "master", "br0", "up")
		c.ns.Exec("ip", "address", "add", c.ip+"/24", "dev", "u0")
		c.ns.Exec("ip", "link", "set", "u0", "up")
	}
	return s
}

// ip runs a command in the hosts' namespace.
func (s *historySite) ip(args ...string) {
	s.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		s.t.Fatalf("ip %v: %v: %s", args, err, out)
	}
}

// prepare makes the certificates and the settings of the centrals. The settings let all
// centrals start together, because a cluster that grows one by one takes longer.
func (s *historySite) prepare() {
	s.t.Helper()
	ca, err := pki.NewCA("history")
	if err != nil {
		s.t.Fatal(err)
	}
	s.ca = ca
	cluster := ""
	for _, c := range s.centrals {
		cluster += fmt.Sprintf(",%s=https://%s:7701", c.name, c.ip)
	}
	for _, c := range s.centrals {
		s.keys(c.data(), c.name, pki.Central, c.ip)
		if err := ca.Save(c.data()); err != nil {
			s.t.Fatal(err)
		}
		settings := settings{Name: c.name, Address: c.address(), Peer: c.ip + ":7701", Cluster: cluster[1:]}
		if err := settings.save(c.data()); err != nil {
			s.t.Fatal(err)
		}
	}
}

// keys makes a certificate with the given name and role, and saves it in a directory.
func (s *historySite) keys(dir, name string, role pki.Role, addresses ...string) *pki.Keys {
	s.t.Helper()
	return centraltest.Keys(s.t, s.ca, dir, name, role, pki.DefaultLife, addresses...)
}

// addresses returns the addresses of all centrals, beginning with central number n.
func (s *historySite) addresses(n int) (list []string) {
	for i := range s.centrals {
		list = append(list, s.centrals[(n+i)%len(s.centrals)].address())
	}
	return list
}

// start starts the centrals, makes the first declaration, and starts the hosts and
// the writers.
func (s *historySite) start() {
	s.t.Helper()
	for _, c := range s.centrals {
		c.run()
		s.t.Cleanup(c.end)
	}
	for i := range historyWriters {
		s.writers = append(s.writers, newHistoryWriter(s, i))
	}
	s.writers[0].declare()
	for i := range historyHosts {
		name := fmt.Sprint("h", i)
		h := &historyHost{s: s, number: i, name: name, random: rand.New(rand.NewPCG(s.seed, uint64(100+i))),
			endpoint:    netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}),
			credentials: credentials.NewTLS(s.keys(filepath.Join(s.dir, name), name, pki.Host).Client())}
		h.recorder = centraltest.NewRecorder()
		h.start()
		s.t.Cleanup(h.halt)
		s.hosts = append(s.hosts, h)
	}
	s.t.Logf("started after %s", time.Since(s.began).Round(time.Millisecond))
}

// run starts the central's process. The process gets the clock that its predecessor
// had.
func (c *historyCentral) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	cmd := exec.Command(os.Args[0], "run", "--data", c.data())
	cmd.Env = append(os.Environ(), centralEnv+"=1", graceEnv+"="+historyGrace.String())
	log, err := os.OpenFile(c.data()+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.s.t.Error(err)
		return
	}
	defer log.Close()
	cmd.Stderr = log
	c.ns.Do(func() { c.clock, err = startShifted(cmd) })
	if err != nil {
		c.s.t.Errorf("central %s: %v", c.name, err)
		return
	}
	c.cmd, c.killed, c.ended = cmd, false, make(chan struct{})
	c.clock.set(c.shift)
	go func(ended chan struct{}) {
		defer close(ended)
		err := cmd.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.killed {
			c.s.t.Errorf("central %s ended: %v", c.name, err)
		}
	}(c.ended)
}

func (c *historyCentral) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd == nil {
		return
	}
	c.killed = true
	_ = c.cmd.Process.Kill()
	c.mu.Unlock()
	<-c.ended
	c.mu.Lock()
	c.clock.close()
	c.cmd = nil
}

func (c *historyCentral) end() {
	c.kill()
	if log, err := os.ReadFile(c.data() + ".log"); err == nil && c.s.t.Failed() {
		c.s.t.Logf("%s: %s", c.name, log[max(0, len(log)-20_000):])
	}
}

func (c *historyCentral) signal(sig syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cmd != nil {
		_ = c.cmd.Process.Signal(sig)
	}
}

func (c *historyCentral) setClock(shift time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shift = shift
	if c.cmd != nil {
		c.clock.set(shift)
	}
}

// etcd returns a client of the etcd member that is part of the central.
func (c *historyCentral) etcd() *clientv3.Client {
	c.s.t.Helper()
	client, err := store.Dial([]string{"unix://" + filepath.Join(c.data(), "etcd.sock")}, nil)
	if err != nil {
		c.s.t.Fatal(err)
	}
	c.s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// block drops all packets between the central and an address, in both directions, until
// the returned function is called.
func (c *historyCentral) block(address string) (end func()) {
	c.ns.Exec("ip", "route", "add", "blackhole", address+"/32")
	return func() { c.ns.Exec("ip", "route", "del", "blackhole", address+"/32") }
}

// fault is one kind of disturbance. The function begin starts the disturbance and
// returns the function that ends it.
type fault struct {
	name  string
	begin func(s *historySite, r *rand.Rand, c *historyCentral) (end func())
}

var processFaults = []fault{
	{"SIGKILL", func(_ *historySite, _ *rand.Rand, c *historyCentral) func() { c.kill(); return c.run }},
	{"SIGSTOP", func(_ *historySite, _ *rand.Rand, c *historyCentral) func() {
		c.signal(syscall.SIGSTOP)
		return func() { c.signal(syscall.SIGCONT) }
	}},
}

var networkFaults = []fault{
	{"no connection to the other centrals", func(s *historySite, _ *rand.Rand, c *historyCentral) func() {
		first, second := c.block(s.centrals[(c.number+1)%3].ip), c.block(s.centrals[(c.number+2)%3].ip)
		return func() { first(); second() }
	}},
	{"no connection to one other central", func(s *historySite, _ *rand.Rand, c *historyCentral) func() {
		return c.block(s.centrals[(c.number+1)%3].ip)
	}},
	{"no connection to the hosts", func(_ *historySite, _ *rand.Rand, c *historyCentral) func() { return c.block("10.77.0.1") }},
	{"no connection at all", func(s *historySite, _ *rand.Rand, c *historyCentral) func() {
		s.ip("link", "set", "p-"+c.name, "down")
		return func() { s.ip("link", "set", "p-"+c.name, "up") }
	}},
}

// A certificate is valid from an hour before it was made, for 90 days. A central renews
// its own certificate after 60 days. The shifted clocks therefore fall before, in and
// after this time.
var clockFaults = []fault{{"clock", func(_ *historySite, r *rand.Rand, c *historyCentral) func() {
	shifts := []time.Duration{-100 * 24 * time.Hour, -90 * time.Minute, -time.Minute, time.Minute, 90 * time.Minute, 70 * 24 * time.Hour, 100 * 24 * time.Hour}
	c.setClock(shifts[r.IntN(len(shifts))])
	return func() { c.setClock(0) }
}}}

// disturb lets hosts and writers work while it starts and ends faults of the centrals.
// Faults of processes, of the network and of clocks come independently of each other.
// When it returns, all faults have ended and all writes are answered. With an even seed it
// finally starts all centrals again, so that all hosts connect at the same time.
func (s *historySite) disturb() {
	stop := make(chan struct{})
	var working, disturbing sync.WaitGroup
	for _, w := range s.writers {
		working.Go(func() { w.work(stop) })
	}
	for _, h := range s.hosts {
		working.Go(func() { h.work(stop) })
	}
	working.Go(func() { s.read(stop) })
	for i, faults := range [][]fault{processFaults, networkFaults, clockFaults} {
		disturbing.Go(func() { s.faults(stop, rand.New(rand.NewPCG(s.seed, uint64(i))), faults) })
	}
	time.Sleep(historyFaults(s.t))
	for end := time.Now().Add(historyMost); !s.seen.enough() && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
	close(stop)
	disturbing.Wait()
	working.Wait()
	if s.seed%2 != 0 {
		return
	}
	for _, c := range s.centrals {
		c.kill()
	}
	for _, c := range s.centrals {
		c.run()
	}
}

func (s *historySite) faults(stop chan struct{}, r *rand.Rand, faults []fault) {
	for {
		pause, length := time.Duration(300+r.IntN(2500))*time.Millisecond, time.Duration(100+r.IntN(3000))*time.Millisecond
		f, c := faults[r.IntN(len(faults))], s.centrals[r.IntN(len(s.centrals))]
		if victim := s.victim.Load(); victim != nil && r.IntN(3) > 0 {
			c = victim
		}
		if !sleepUntil(stop, pause) {
			return
		}
		s.t.Logf("%s %s: %s for %s", time.Since(s.began).Round(time.Millisecond), c.name, f.name, length)
		s.victim.Store(c)
		end := f.begin(s, r, c)
		sleepUntil(stop, length)
		end()
		s.victim.CompareAndSwap(c, nil)
	}
}

// sleepUntil sleeps for the time d. It returns false if the channel stop was closed
// meanwhile.
func sleepUntil(stop chan struct{}, d time.Duration) bool {
	select {
	case <-stop:
		return false
	case <-time.After(d):
		return true
	}
}

var discard = slog.New(slog.DiscardHandler)
