// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/e2e/lab"
)

// ordinaryUser and ordinaryUID are the name and the uid of an unprivileged user that every
// Debian system has.
const (
	ordinaryUser = "nobody"
	ordinaryUID  = 65534
)

// portNeeds is the table "Privileges" of docs/uplinks.md: the capabilities that each kind
// of port needs. DIR and NS stand for a directory of the user and for another namespace.
var portNeeds = []struct {
	name         string // of the port
	options      string
	capabilities string
}{
	{"server", "type=vhost-user path=DIR/server.sock", ""},
	{"client", "type=vhost-user mode=client path=DIR/client.sock", ""},
	{"overlay", "type=vxlan vni=7 remote=10.9.0.2", ""},
	{"patch", "type=patch peer=other", ""},
	{"owned", "type=vhost-user path=DIR/owned.sock socket-owner=daemon", "chown"},
	{"grouped", "type=vhost-user path=DIR/grouped.sock socket-group=daemon", "chown"},
	{"tap", "type=tap", "net_admin"},
	{"host", "type=local", "net_admin"},
	{"counted", "type=tap", "net_admin,bpf"},
	{"moved", "type=tap netns=NS", "net_admin,sys_admin"},
	{"packets", "type=af_packet dev=u0", "net_admin,net_raw"},
	{"uplink", "type=uplink dev=u0", "net_admin,net_raw"},
	{"whole", "type=af_packet dev=u0", "net_admin,net_raw,bpf"},
	{"xdp", "type=af_xdp dev=u0", "net_admin,net_raw,bpf,perfmon,ipc_lock"},
}

// ownedDir makes the directory of a host's weftd and gives it to the ordinary user.
func ownedDir(t *testing.T, l *lab.Lab, host string) string {
	t.Helper()
	dir := filepath.Join(l.Dir, host)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, ordinaryUID, ordinaryUID); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Each kind of port works with exactly the capabilities of its row, for an ordinary
// user. With fewer, weftd refuses the port with a line that names the port and the missing
// capabilities, and continues.
func TestPortCapabilities(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := l.Host("a"), l.Host("b")
	l.Wire(a, "u0", b, "u0", 1600)
	a.Address("u0", "10.9.0.1/24")
	dir := ownedDir(t, l, "a")
	fill := strings.NewReplacer("DIR", dir, "NS", b.NS)
	var sets []string
	for _, p := range portNeeds {
		if !slices.Contains(sets, p.capabilities) {
			sets = append(sets, p.capabilities)
		}
	}
	d := a.Weftd("--user="+ordinaryUser, "--capabilities=none")
	checkForeignSocket(t, d, filepath.Join(dir, "foreign.sock"))
	for i, set := range sets {
		if i > 0 {
			d.Restart("--user="+ordinaryUser, "--capabilities="+set)
		}
		for _, p := range portNeeds {
			missing := lacking(set, p.capabilities)
			if set != p.capabilities && (missing == "" || p.name == "whole" || p.name == "counted") {
				continue // more than the port needs; or bpf is missing, without which the port works, too
			}
			args := append([]string{"add-port", p.name}, strings.Fields(fill.Replace(p.options))...)
			_, refusal, code := d.TryWeft(args...)
			if missing != "" {
				want := " needs " + missing + ", which weftd (user " + ordinaryUser + ") lacks: "
				if code == 0 || !strings.Contains(refusal, "port "+p.name+": ") || !strings.Contains(refusal, want) || strings.Count(refusal, "\n") != 1 {
					t.Errorf("with %q: %s\nwant one line that names port %s, and%s", set, refusal, p.name, want)
				}
				continue
			}
			if code != 0 {
				t.Errorf("with %q, port %s: %s", set, p.name, refusal)
				continue
			}
			checkPort(t, d, p.name)
			d.Weft("del-port", p.name)
		}
	}
}

// checkForeignSocket checks that a port whose front end's socket weftd may not write to waits,
// and that its state tells the operator what to do.
func checkForeignSocket(t *testing.T, d *lab.Daemon, path string) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	d.Weft("add-port", "foreign", "type=vhost-user", "mode=client", "path="+path)
	eventually(t, func() error {
		for _, p := range show(d).Ports {
			if p.Name == "foreign" && p.State == "waiting" && strings.Contains(p.Detail, "permission denied for user "+ordinaryUser) &&
				strings.Contains(p.Detail, "group") && strings.Contains(p.Detail, "CAP_DAC_OVERRIDE") {
				return nil
			}
		}
		return fmt.Errorf("ports: %+v", show(d).Ports)
	})
	d.Weft("del-port", "foreign")
}

// lacking returns the names of the capabilities in wantCaps that are not in held. It ignores
// ipc_lock, which a process with a high limit of locked memory does not need.
func lacking(held, wantCaps string) string {
	var missing []string
	for _, c := range strings.Split(wantCaps, ",") {
		if c != "" && c != "ipc_lock" && !slices.Contains(strings.Split(held, ","), c) {
			missing = append(missing, "CAP_"+strings.ToUpper(c))
		}
	}
	return strings.Join(missing, " ")
}

// checkPort checks that a port has not failed. For the ports named whole and counted, it also
// checks that the kernel has refused nothing. For the port named tap, it checks that weft show
// names the missing CAP_BPF.
func checkPort(t *testing.T, d *lab.Daemon, name string) {
	t.Helper()
	s := show(d)
	for _, p := range s.Ports {
		if p.Name != name {
			continue
		}
		if p.State == "failed" || name == "whole" && strings.Contains(p.Reason, "not permitted") ||
			name == "counted" && p.Mode != "" || name == "tap" && !strings.Contains(p.Reason, "CAP_BPF") {
			t.Errorf("with %v: %+v", s.Capabilities, p)
		}
		return
	}
	t.Errorf("with %v: no port %s", s.Capabilities, name)
}

// A weftd that runs as an ordinary user takes over the switch from a weftd that ran as
// root, replaces a killed engine, and hands over to the next weftd.
func TestOrdinaryUser(t *testing.T) {
	l := newLab(t)
	host, a, b := l.Host("h"), l.Host("a"), l.Host("b")
	ownedDir(t, l, "h")
	d := host.Weftd() // as root
	d.Tap(a, "02:00:00:00:00:0a", "10.0.0.1/24", 1500)
	d.Tap(b, "02:00:00:00:00:0b", "10.0.0.2/24", 1500)
	d.Weft("add-flow", "actions=normal")
	lab.MustPing(t, a, "10.0.0.2", 3)
	asRoot := d.EnginePID()

	d.Restart("--user=" + ordinaryUser)
	if d.EnginePID() == asRoot {
		t.Error("the engine of root goes on, which the user cannot end")
	}
	lab.MustPing(t, a, "10.0.0.2", 3)
	checkProcesses(t, d)
	s := show(d)
	if s.User != ordinaryUser || !slices.Contains(s.Capabilities, "CAP_NET_ADMIN") || slices.Contains(s.Capabilities, "CAP_DAC_OVERRIDE") || len(s.MissingCapabilities) != 0 {
		t.Errorf("show: user %s, capabilities %v, missing %v", s.User, s.Capabilities, s.MissingCapabilities)
	}

	killed := d.EnginePID()
	d.KillEngine()
	eventually(t, func() error {
		if pid := d.EnginePID(); pid == 0 || pid == killed {
			return fmt.Errorf("engine %d, after %d", pid, killed)
		}
		return nil
	})
	if err := lab.WaitPing(a, "10.0.0.2", patienceLimit); err != nil {
		t.Error(err)
	}
	engine := d.EnginePID()
	d.Restart("--user=" + ordinaryUser)
	if pid := d.EnginePID(); pid != engine {
		t.Errorf("engine %d after a restart, was %d", pid, engine)
	}
	lab.MustPing(t, a, "10.0.0.2", 3)

	// A weftd that runs as root refuses the user's state with a line that says what to do.
	// The engine continues.
	d.Terminate()
	p := host.Start(d.Binary("weftd"), "--socket", d.Socket, "--state", d.State)
	_ = p.Wait(patienceLimit)
	if out := p.Output(); p.Alive() || !strings.Contains(out, fmt.Sprintf("owner uid %d", ordinaryUID)) || !strings.Contains(out, "(--user)") {
		t.Errorf("root with the user's state: %s", out)
	}
	lab.MustPing(t, a, "10.0.0.2", 3)
	d.Start()
	if pid := d.EnginePID(); pid != engine {
		t.Errorf("engine %d after the refusal, was %d", pid, engine)
	}
}

// patienceLimit is the time after which a waiting test fails.
const patienceLimit = time.Minute

// checkProcesses checks the user and the capabilities of control, its engine and its spare
// engine.
func checkProcesses(t *testing.T, d *lab.Daemon) {
	t.Helper()
	control := d.Control().PID()
	checkStatus(t, control, "control", func(got map[string]string) bool {
		return got["CapEff"] == got["CapBnd"] && got["CapEff"] == got["CapAmb"] && got["CapEff"] != none && got["Seccomp"] == "0"
	})
	var engines []int
	eventually(t, func() error {
		engines = nil
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", control))
		for _, path := range lists {
			text, _ := os.ReadFile(path) // error ignored: the thread has ended
			for _, word := range strings.Fields(string(text)) {
				pid, _ := strconv.Atoi(word)
				status := processStatus(pid)
				if status["Seccomp"] == "2" { // in the sandbox
					engines = append(engines, pid)
				}
			}
		}
		if len(engines) != 2 || !slices.Contains(engines, d.EnginePID()) {
			return fmt.Errorf("engines in a sandbox: %v, want two, with %d", engines, d.EnginePID())
		}
		return nil
	})
	for _, pid := range engines {
		checkStatus(t, pid, "engine", func(got map[string]string) bool {
			return got["CapEff"] == none && got["CapPrm"] == none && got["CapAmb"] == none && got["CapBnd"] == none && got["Seccomp"] == "2"
		})
	}
}

// none is an empty set of capabilities in /proc/PID/status.
const none = "0000000000000000"

// checkStatus checks that a process belongs to the ordinary user and cannot gain
// privileges, and that its status satisfies checkText.
func checkStatus(t *testing.T, pid int, name string, checkText func(status map[string]string) bool) {
	t.Helper()
	got := processStatus(pid)
	uids := strings.Fields(got["Uid"] + " " + got["Gid"])
	if len(slices.Compact(uids)) != 1 || uids[0] != fmt.Sprint(ordinaryUID) || got["NoNewPrivs"] != "1" || !checkText(got) {
		t.Errorf("%s %d: %v", name, pid, got)
	}
}

// processStatus returns the fields of /proc/PID/status. It is empty if the process has
// ended.
func processStatus(pid int) map[string]string {
	fields := map[string]string{}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":\t"); ok {
			fields[name] = value
		}
	}
	return fields
}
