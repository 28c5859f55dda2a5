// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"weft/bench"
)

// database is a cluster of three servers of one OVSDB database.
type database struct {
	name    string // name in the schema
	servers [3]server
}

type server struct {
	file, control string
	address       string // HOST:PORT at which clients connect
	process       *exec.Cmd
}

// The names of the databases, and the directory in which Debian's package ovn-common installs their
// schemas.
const (
	northbound = "OVN_Northbound"
	southbound = "OVN_Southbound"
	schemas    = "/usr/share/ovn/"
)

// serverIP is the address of all servers.
const serverIP = "127.0.0.1"

// startDatabase creates the database files of a cluster and starts its servers. port is the first of
// six consecutive TCP ports.
func startDatabase(dir, name, short, schema string, port int, timer time.Duration) (*database, error) {
	d := &database{name: name}
	raft := func(i int) string { return fmt.Sprintf("tcp:%s:%d", serverIP, port+3+i) }
	for i := range d.servers {
		s := &d.servers[i]
		s.file = filepath.Join(dir, fmt.Sprint(short, i, ".db"))
		s.control = filepath.Join(dir, fmt.Sprint(short, i, ".ctl"))
		s.address = fmt.Sprintf("%s:%d", serverIP, port+i)
		create := []string{"ovsdb-tool", "create-cluster", s.file, schemas + schema, raft(0)}
		if i > 0 {
			create = []string{"ovsdb-tool", "join-cluster", s.file, name, raft(i), raft(0)}
		}
		if _, err := command(create...); err != nil {
			return d, err
		}
		if err := d.start(i); err != nil {
			return d, err
		}
	}
	for i := range d.servers {
		if err := d.joined(i); err != nil {
			return d, err
		}
	}
	return d, d.setTimer(timer)
}

func command(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// start starts server i of the database. The server is killed when this process ends.
func (d *database) start(i int) error {
	s := &d.servers[i]
	_ = os.Remove(s.control) // left by a server that was killed
	s.process = exec.Command("ovsdb-server", s.file, "--remote=ptcp:"+strings.Split(s.address, ":")[1]+":"+serverIP,
		"--unixctl="+s.control, "-vconsole:off", "-vfile:info", "--log-file="+s.file+".log")
	return bench.StartWithParent(s.process)
}

// startTimeLimit is the longest time to wait until a cluster has started.
const startTimeLimit = 30 * time.Second

// joined waits until a server is a member of the cluster.
func (d *database) joined(i int) error {
	last := errors.New("no answer")
	for end := time.Now().Add(startTimeLimit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var out string
		if out, last = d.appctl(i, "cluster/status", d.name); last == nil && strings.Contains(out, "Status: cluster member") {
			return nil
		}
	}
	return fmt.Errorf("server %d of %s: %w", i, d.name, last)
}

func (d *database) appctl(i int, words ...string) (string, error) {
	return command(append([]string{"ovs-appctl", "--timeout=5", "-t", d.servers[i].control}, words...)...)
}

// leader returns the server that leads the cluster.
func (d *database) leader() (int, error) {
	for end := time.Now().Add(startTimeLimit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for i := range d.servers {
			if out, err := d.appctl(i, "cluster/status", d.name); err == nil && strings.Contains(out, "Role: leader") {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("%s has no leader", d.name)
}

// setTimer sets the election timer of the cluster. One change can at most double the timer, so
// setTimer makes several.
func (d *database) setTimer(timer time.Duration) error {
	for next := 2 * time.Second; ; next *= 2 {
		next = min(next, timer)
		i, err := d.leader()
		if err != nil {
			return err
		}
		if _, err := d.appctl(i, "cluster/change-election-timer", d.name, strconv.FormatInt(next.Milliseconds(), 10)); err != nil {
			return err
		}
		time.Sleep(500 * time.Millisecond) // wait until the cluster has committed the change
		if next == timer {
			return nil
		}
	}
}

func (d *database) kill(i int) {
	if p := d.servers[i].process; p != nil && p.Process != nil {
		_ = p.Process.Kill()
		_ = p.Wait()
		d.servers[i].process = nil
	}
}

func (d *database) killAll() {
	if d == nil {
		return
	}
	for i := range d.servers {
		d.kill(i)
	}
}

// addresses returns the addresses of all servers as ovn-northd expects them.
func (d *database) addresses() string {
	var list []string
	for i := range d.servers {
		list = append(list, "tcp:"+d.servers[i].address)
	}
	return strings.Join(list, ",")
}

// processes returns the processes of the servers that run.
func (d *database) processes() (list []*exec.Cmd) {
	for i := range d.servers {
		if p := d.servers[i].process; p != nil {
			list = append(list, p)
		}
	}
	return list
}
