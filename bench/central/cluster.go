// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"weft/central/store"
	"weft/central/wire"
)

// members is the number of centrals.
const members = 3

// quick reconnects soon after a killed central is back.
var quick = backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond}

// cluster has the three central processes and the driver's connections to them.
type cluster struct {
	self  []string // command line that makes this program call Serve
	dir   string
	ca    *authority
	nodes [members]node
	// preferred is the index of the central that answered last.
	preferred atomic.Int32
	retries   atomic.Int64  // number of failed requests
	spent     time.Duration // CPU time of the central processes that have ended
}

type node struct {
	config  string // path of the file with the central's memberConfig
	address string
	etcd    string // URL on which the central's etcd serves clients
	profile string
	process *exec.Cmd
	admin   wire.AdminClient
}

func startCluster(ctx context.Context, self []string, dir string, ca *authority) (*cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	c := &cluster{self: self, dir: dir, ca: ca}
	ports, err := freePorts(3 * members)
	if err != nil {
		return nil, err
	}
	config, err := ca.client("driver")
	if err != nil {
		return nil, err
	}
	at := func(scheme string, n int) string { return fmt.Sprintf("%s127.0.0.1:%d", scheme, ports[n]) }
	var all []string
	for i := range c.nodes {
		all = append(all, fmt.Sprintf("c%d=%s", i, at("https://", 3*i)))
	}
	for i := range c.nodes {
		n := &c.nodes[i]
		name := fmt.Sprint("c", i)
		n.config, n.address, n.profile = filepath.Join(dir, name+".json"), at("", 3*i+1), at("", 3*i+2)
		n.etcd = "unix://" + filepath.Join(dir, name+".sock") // as in weft-central
		m := memberConfig{Listen: n.address, Profile: n.profile}
		for j := range c.nodes {
			if j != i {
				m.Peers = append(m.Peers, at("", 3*j+1))
			}
		}
		m.Etcd = store.EmbedConfig{Name: name, Dir: filepath.Join(dir, name), PeerURL: at("https://", 3*i), ClientURL: n.etcd,
			Cluster: strings.Join(all, ","), Token: "bench"}
		if m.Etcd.TLS, err = ca.files(dir, name); err != nil {
			return nil, err
		}
		data, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(n.config, data, 0o600); err != nil {
			return nil, err
		}
		conn, err := grpc.NewClient(n.address, grpc.WithTransportCredentials(credentials.NewTLS(config)),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}))
		if err != nil {
			return nil, err
		}
		n.admin = wire.NewAdminClient(conn)
	}
	for i := range c.nodes {
		if err := c.start(i); err != nil {
			c.kill()
			return nil, err
		}
	}
	_, err = c.leader(ctx)
	if err != nil {
		c.kill()
	}
	return c, err
}

// freePorts returns n unused TCP ports.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func (c *cluster) start(i int) error {
	n := &c.nodes[i]
	log, err := os.OpenFile(n.config+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	n.process = exec.Command(c.self[0], append(c.self[1:len(c.self):len(c.self)], n.config)...)
	n.process.Stderr, n.process.Stdout = log, log
	n.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.process.Env = append(os.Environ(), configVariable+"="+n.config)
	return n.process.Start()
}

// configVariable names an environment variable: the path of a central's configuration
// file. A test binary takes no arguments.
const configVariable = "WEFT_BENCH_CENTRAL"

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

func (c *cluster) leader(ctx context.Context) (int, error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		for i := range c.nodes {
			if s, err := c.status(ctx, i); err == nil && s.GetCentrals()[0].GetLeader() {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("no central leads, see the logs in %s", c.dir)
}

func (c *cluster) status(ctx context.Context, i int) (*wire.StatusReply, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return c.nodes[i].admin.Status(ctx, &wire.StatusRequest{})
}

// apply sends a request until a central has applied it. The request id makes repeats
// harmless.
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
		if status.Code(err) == codes.FailedPrecondition || ctx.Err() != nil {
			return 0, err
		}
		c.retries.Add(1)
		time.Sleep(10 * time.Millisecond)
	}
}

func (c *cluster) sync(ctx context.Context, revision int64) (hosts int, err error) {
	r, err := c.nodes[c.preferred.Load()].admin.Sync(ctx, &wire.SyncRequest{Revision: revision, WaitHosts: true})
	return int(r.GetHosts()), err
}

// stored returns all objects in etcd.
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

// reader is a store.Sink that keeps the first list of objects.
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
			sum += cpuOf(p.Process.Pid)
		}
	}
	return sum
}

// cpuOf reads a process's CPU time, which /proc/PID/stat counts in units of 10 ms.
func cpuOf(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(after)
	if len(fields) < 13 {
		return 0
	}
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func memoryOf(pid int) (now, most int64) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			now = kib << 10
		case "VmHWM:":
			most = kib << 10
		}
	}
	return now, most
}
