// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"weft/bench"
	"weft/central/pki"
	"weft/central/store"
	"weft/central/wire"
	"weft/e2e/lab"
)

// members is the number of weft-central servers in a cluster.
const members = 3

// quick is the gRPC backoff of clients. It is short, so a client reconnects soon after a killed
// weft-central server has restarted.
var quick = backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond}

// cluster has the three processes of weft-central, and this process's connections to them.
type cluster struct {
	program string   // path of weft-central; if empty, the centrals run self
	self    []string // command line of a program that calls Serve with the path in the variable ConfigVariable
	dir     string
	ip      string // address at which all centrals listen
	ca      *authority
	nodes   [members]node
	// preferred is the index of the weft-central server that answered the last request. The next
	// request goes to it first.
	preferred atomic.Int32
	retries   atomic.Int64  // number of failed requests
	spent     time.Duration // CPU time of the central processes that have already ended
}

type node struct {
	name    string
	data    string // directory of the central
	config  string // path of the file with the central's memberConfig
	address string
	etcd    string // URL on which the central's etcd serves clients
	profile string // HOST:PORT of CPU profiles, or of metrics if the central is weft-central
	process *exec.Cmd
	admin   wire.AdminClient
}

// startCluster starts the weft-central servers and waits until the etcd of one of them is elected
// leader.
func startCluster(ctx context.Context, o *Options, ca *authority) *cluster {
	dir := lab.Must(filepath.Abs(o.Dir))
	c := &cluster{program: o.Central, self: o.Self, dir: dir, ip: o.IP, ca: ca}
	ports := centralPorts
	if c.program == "" {
		ports = freePorts(c.ip, 3*members)
	}
	config := ca.client("driver", pki.Admin)
	at := func(n int) string { return fmt.Sprintf("%s:%d", c.ip, ports[n]) }
	var all []string
	for i := range c.nodes {
		all = append(all, fmt.Sprintf("c%d=https://%s", i, at(3*i)))
	}
	for i := range c.nodes {
		n := &c.nodes[i]
		n.name = fmt.Sprint("c", i)
		n.data = filepath.Join(c.dir, n.name)
		n.address, n.profile = at(3*i+1), at(3*i+2)
		n.etcd = "unix://" + filepath.Join(n.data, "etcd.sock")
	}
	for i := range c.nodes {
		n := &c.nodes[i]
		if c.program != "" {
			c.prepareProgram(n, at(3*i), strings.Join(all, ","))
		} else {
			c.prepareMember(n, at(3*i), strings.Join(all, ","))
		}
		conn := lab.Must(grpc.NewClient(n.address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second})))
		n.admin = wire.NewAdminClient(conn)
	}
	if err := lab.Attempt(func() {
		for i := range c.nodes {
			c.start(i)
		}
		c.leader(ctx)
	}); err != nil {
		c.kill()
		lab.Check(err)
	}
	return c
}

// prepareMember writes the configuration file of a weft-central server that runs in a copy of this
// program, by the function Serve.
func (c *cluster) prepareMember(n *node, peer, dir string) {
	n.config = n.data + ".json"
	m := memberConfig{Listen: n.address, Profile: n.profile}
	for i := range c.nodes {
		if p := &c.nodes[i]; p != n {
			m.Peers = append(m.Peers, p.address)
		}
	}
	m.Etcd = store.EmbedConfig{Name: n.name, Dir: filepath.Join(n.data, "etcd"), PeerURL: "https://" + peer, ClientURL: n.etcd,
		Cluster: dir, Token: "bench"}
	m.Etcd.TLS = c.ca.saveCentral(n.data, n.name, c.ip)
	data := lab.Must(json.Marshal(m))
	lab.Check(os.WriteFile(n.config, data, 0o600))
}

// prepareProgram writes the settings of a server that runs the program weft-central. The settings list
// all etcd members from the start, so no server joins the cluster later.
func (c *cluster) prepareProgram(n *node, peer, dir string) {
	c.ca.saveCentral(n.data, n.name, c.ip)
	settings := fmt.Sprintf("name = %q\naddress = %q\npeer = %q\ncluster = %q\nmetrics = %q\n", n.name, n.address, peer, dir, n.profile)
	lab.Check(os.WriteFile(filepath.Join(n.data, "central.toml"), []byte(settings), 0o600))
}

// centralPorts are the TCP ports of servers that run the program weft-central. The kernel does not give
// these ports to clients. Therefore no client can occupy the port of a server that was killed.
var centralPorts = []int{7701, 7700, 7702, 7711, 7710, 7712, 7721, 7720, 7722}

// freePorts returns n TCP ports of an address on which no process listens at present.
func freePorts(ip string, n int) (ports []int) {
	for range n {
		l := lab.Must(net.Listen("tcp", ip+":0"))
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func (c *cluster) start(i int) {
	n := &c.nodes[i]
	log := lab.Must(os.OpenFile(n.data+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600))
	defer log.Close()
	if c.program != "" {
		n.process = exec.Command(c.program, "run", "--data", n.data)
	} else {
		n.process = exec.Command(c.self[0], c.self[1:]...)
		n.process.Env = append(os.Environ(), ConfigVariable+"="+n.config)
	}
	n.process.Stderr, n.process.Stdout = log, log
	lab.Check(bench.StartWithParent(n.process))
}

// ConfigVariable is an environment variable. It has the path of a weft-central server's configuration
// file. A program that finds it set calls Serve with this path and so runs as a weft-central server.
const ConfigVariable = "WEFT_BENCH_CENTRAL"

func (c *cluster) signal(i int, s syscall.Signal) {
	if p := c.nodes[i].process; p != nil {
		_ = p.Process.Signal(s)
	}
}

func (c *cluster) end(i int) {
	n := &c.nodes[i]
	if n.process == nil {
		return
	}
	_ = n.process.Process.Kill()
	_ = n.process.Wait()
	if s := n.process.ProcessState; s != nil {
		c.spent += s.UserTime() + s.SystemTime()
	}
	n.process = nil
}

func (c *cluster) kill() {
	for i := range c.nodes {
		if c.nodes[i].process != nil {
			_ = c.nodes[i].process.Process.Kill()
		}
	}
	for i := range c.nodes {
		c.end(i)
	}
}

func (c *cluster) leader(ctx context.Context) int {
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for i := range c.nodes {
			if s, err := c.own(ctx, i); err == nil && s.GetLeader() {
				return i
			}
		}
	}
	lab.Check(fmt.Errorf("no central leads, see the logs in %s", c.dir))
	return 0
}

// own returns the status of one weft-central server, as this server itself reports it.
func (c *cluster) own(ctx context.Context, i int) (*wire.Central, error) {
	s, err := c.status(ctx, i)
	if err != nil {
		return nil, err
	}
	for _, m := range s.GetCentrals() {
		if m.GetName() == c.nodes[i].name {
			return m, nil
		}
	}
	return nil, fmt.Errorf("central %s does not list itself", c.nodes[i].name)
}

func (c *cluster) status(ctx context.Context, i int) (*wire.StatusReply, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.nodes[i].admin.Status(ctx, &wire.StatusRequest{})
}

// connected returns the number of hosts that are connected to any weft-central server. Each
// weft-central adds the hosts of the other servers to its own, so one answer is enough. A server that
// runs Serve reports only its own hosts, so connected adds up the answers of all.
func (c *cluster) connected(ctx context.Context) (n int) {
	for i := range c.nodes {
		s, err := c.status(ctx, i)
		if err != nil {
			continue
		}
		if c.program != "" {
			return int(s.GetConnected())
		}
		n += int(s.GetConnected())
	}
	return n
}

// apply sends a request until a weft-central server has applied or rejected it. If an attempt fails
// otherwise, or takes longer than patience, apply sends the request to the next server. The request id
// stays the same, so the request is applied only once.
func (c *cluster) apply(ctx context.Context, r *wire.ChangeRequest, patience time.Duration) (int64, error) {
	for n := c.preferred.Load(); ; n++ {
		at := n % members
		attempt, cancel := context.WithTimeout(ctx, patience)
		reply, err := c.nodes[at].admin.Apply(attempt, r)
		cancel()
		if err == nil {
			c.preferred.Store(at)
			return reply.GetRevision(), nil
		}
		if status.Code(err) == codes.FailedPrecondition || status.Code(err) == codes.InvalidArgument || ctx.Err() != nil {
			return 0, err
		}
		c.retries.Add(1)
		time.Sleep(max(10*time.Millisecond, wire.RetryIn(err)))
	}
}

func (c *cluster) sync(ctx context.Context, revision int64) (hosts int) {
	return int(lab.Must(c.nodes[c.preferred.Load()].admin.Sync(ctx, &wire.SyncRequest{Revision: revision, WaitHosts: true})).GetHosts())
}

func (c *cluster) stored(ctx context.Context) ([]store.Object, error) {
	return readStore(ctx, c.endpoints())
}

func (c *cluster) endpoints() (list []string) {
	for i := range c.nodes {
		list = append(list, c.nodes[i].etcd)
	}
	return list
}

func readStore(ctx context.Context, endpoints []string) ([]store.Object, error) {
	client, err := store.Dial(endpoints, nil)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r := &reader{done: cancel}
	if err := store.New(client).Follow(ctx, r); r.objects == nil {
		return nil, errors.Join(errors.New("etcd cannot be read"), err)
	}
	return r.objects, nil
}

// reader receives the list of objects in weft-central's store. It keeps the first list, and ignores
// later lists and changes.
type reader struct {
	objects []store.Object
	done    func()
}

func (r *reader) Reset(_ int64, objects []store.Object) {
	if r.objects == nil {
		r.objects = objects
	}
	r.done()
}
func (r *reader) Change(int64, []store.Object) {}
func (r *reader) Progress(int64)               {}

func (c *cluster) cpu() time.Duration {
	sum := c.spent
	for i := range c.nodes {
		if p := c.nodes[i].process; p != nil {
			sum += CPUOf(p.Process.Pid)
		}
	}
	return sum
}

// counters has sums of counters over all weft-central servers. Unlike CPU times, they do not depend on
// what else runs on the machine.
type counters struct {
	bound        int // number of bindings that were written in the same transaction as the declaration
	transactions int // number of transactions with which requests changed the declaration
	batches      int // number of batches that were sent to hosts
	calls        int // number of system calls that read or write
}

// counters reads the counters. If the weft-central servers serve no metrics, all counters except calls
// are 0.
func (c *cluster) counters() (sum counters) {
	for i := range c.nodes {
		if p := c.nodes[i].process; p != nil {
			sum.calls += callsOf(p.Process.Pid)
		}
		reply, err := http.Get("http://" + c.nodes[i].profile + "/metrics")
		if err != nil {
			continue
		}
		data, _ := io.ReadAll(reply.Body)
		reply.Body.Close()
		for line := range strings.Lines(string(data)) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			value, _ := strconv.ParseFloat(text, 64)
			switch name {
			case "weft_central_bound_at_once_total":
				sum.bound += int(value)
			case "weft_central_transactions_total":
				sum.transactions += int(value)
			case "weft_central_batches_total":
				sum.batches += int(value)
			}
		}
	}
	return sum
}

// callsOf returns how many system calls a process has made to read or write.
func callsOf(pid int) int {
	p, _ := procfs.NewProc(pid) // an error here means that IO returns one, too
	io, _ := p.IO()             // if the process has ended, the number is 0
	return int(io.SyscR + io.SyscW)
}

// CPUOf returns a process's CPU time.
func CPUOf(pid int) time.Duration {
	user, system := bench.CPUTime(pid)
	return user + system
}

// MemoryOf returns the resident memory of a process in bytes: its present value and its highest value
// so far.
func MemoryOf(pid int) (current, peak int64) {
	s := bench.Status(pid)
	return int64(s.VmRSS), int64(s.VmHWM)
}
