// SPDX-License-Identifier: Apache-2.0

// Package install tests the Debian package. The test machine consists of namespaces in
// which systemd boots.
package install

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

// patience is the time after which a waiting test fails. Without KVM, and on a busy machine, a
// guest needs minutes for work of a few seconds.
const patience = 5 * time.Minute

// machine is a test machine that runs systemd, with a copy of this machine's root file
// system.
type machine struct {
	t   *testing.T
	pid string // of its process 1
}

// boot starts a test machine in which the directory deb appears as /deb.
func boot(t *testing.T, deb string) *machine {
	t.Helper()
	script, err := filepath.Abs("machine.sh")
	if err != nil {
		t.Fatal(err)
	}
	// systemd needs a cgroup of its own. Its child processes inherit the cgroup of the
	// shell.
	const enter = `mkdir -p "$1" && echo $$ >"$1/cgroup.procs" && shift && exec unshare -m -n -u -i -C -p -f --kill-child "$@"`
	group := filepath.Join(lab.GroupRoot(), fmt.Sprintf("weft%d-install", os.Getpid()))
	cmd := exec.Command("sh", "-c", enter, "sh", group, "sh", script, t.TempDir(), deb)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // Pdeathsig is sent when the thread that started the machine ends
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // ends the machine, too: --kill-child
		<-ended
		if err := lab.RemoveGroup(group); err != nil {
			t.Errorf("cgroup %s: %v", group, err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	m := &machine{t: t}
	m.eventually("systemd runs", func() bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
		m.pid = strings.TrimSpace(string(children))
		state, _ := m.try("systemctl", "is-system-running")
		return m.pid != "" && (strings.HasPrefix(state, "running") || strings.HasPrefix(state, "degraded"))
	})
	return m
}

func (m *machine) eventually(name string, ok func() bool) {
	m.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			m.t.Fatalf("does not come: %s", name)
		}
	}
}

func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"-t", m.pid, "-a", "--"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8"}
	return cmd
}

func (m *machine) try(args ...string) (string, error) {
	out, err := m.command(args...).CombinedOutput()
	return string(out), err
}

func (m *machine) run(args ...string) string {
	m.t.Helper()
	out, err := m.try(args...)
	if err != nil {
		log, _ := m.try("journalctl", "--no-pager", "-n", "30", "-u", "weftd")
		m.t.Fatalf("%s\n%v: %v\n%s", log, args, err, out)
	}
	return out
}

func (m *machine) show() (s api.Show) {
	m.t.Helper()
	if err := json.Unmarshal([]byte(m.run("weft", "show", "--json")), &s); err != nil {
		m.t.Fatal(err)
	}
	return s
}

// changed lists the files that the test machine has made or changed. It leaves out logs
// and the records of dpkg and systemd.
func (m *machine) changed() []string {
	var kept []string
	for _, path := range strings.Fields(m.run("find", "/changed", "-mindepth", "1", "-printf", "/%P\n")) {
		known := func(prefix string) bool { return strings.HasPrefix(path, prefix) }
		if !slices.ContainsFunc([]string{"/var/lib/dpkg", "/var/lib/systemd", "/var/log", "/var/cache", "/var/tmp", "/etc/group", "/etc/gshadow", "/etc/passwd", "/etc/shadow", "/etc/subuid", "/etc/subgid", "/etc/.pwd.lock", "/var/backups"}, known) {
			kept = append(kept, path)
		}
	}
	return kept
}

// built builds two versions of the Debian package, once in each process, and returns their
// directory. The programs of the packages report the commits "first" and "second".
var built = sync.OnceValues(func() (dir string, err error) {
	dir = filepath.Join(os.TempDir(), fmt.Sprintf("weft%d-packages", os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	for version, commit := range map[string]string{"1.0": "first", "1.1": "second"} {
		cmd := exec.Command("../../packaging/deb")
		cmd.Env = append(os.Environ(), "OUT="+dir, "COMPRESS=none", "VERSION="+version, "COMMIT="+commit)
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%w: %s", err, out)
		}
	}
	return dir, nil
})

func packages(t *testing.T) (dir string) {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		lab.Guard()
	}
	code := m.Run()
	os.RemoveAll(filepath.Join(os.TempDir(), fmt.Sprintf("weft%d-packages", os.Getpid())))
	lab.CloseAll()
	os.Exit(code)
}

// deb returns the path, in the test machine, of a version of the package.
func (m *machine) deb(version string) string {
	m.t.Helper()
	return "/deb/weft_" + version + "-1_" + strings.TrimSpace(m.run("dpkg", "--print-architecture")) + ".deb"
}

// addPort adds a port. A busy machine may need several attempts.
func (m *machine) addPort(name string, options ...string) {
	m.t.Helper()
	m.eventually("port "+name, func() bool {
		_, err := m.try(append([]string{"weft", "add-port", "--may-exist", name}, options...)...)
		return err == nil
	})
}

// formerUnit is a drop-in with which the unit runs weftd as root, as earlier versions did.
const formerUnit = `[Service]
User=root
Group=root
AmbientCapabilities=
CapabilityBoundingSet=
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF CAP_PERFMON CAP_SYS_ADMIN CAP_IPC_LOCK CAP_SYS_NICE CAP_SYS_RESOURCE CAP_SETPCAP CAP_CHOWN CAP_FOWNER CAP_DAC_OVERRIDE CAP_KILL
`

// dropIn is the path of formerUnit.
const dropIn = "/run/systemd/system/weftd.service.d/former.conf"

// owners returns the users that own the processes of control and engine, the state files and
// the sockets, each user once.
func (m *machine) owners() string {
	m.t.Helper()
	s := m.show()
	return m.run("sh", "-c", fmt.Sprintf("(ps -o user= -p %d,%d; find /var/lib/weft /run/weft -printf '%%u\n') | sort -u | xargs", s.PID, s.EnginePID))
}

// checkPrivileges checks the capabilities that control has under the unit, and that its engine
// has none.
func (m *machine) checkPrivileges() {
	m.t.Helper()
	s := m.show()
	status := func(pid int) string {
		return m.run("grep", "-E", "^(CapEff|CapBnd|NoNewPrivs|Seccomp):", fmt.Sprintf("/proc/%d/status", pid))
	}
	const granted = "000000c000a07101" // the nine capabilities of the unit, by their bits
	for _, p := range []struct {
		name string
		pid  int
		set  string
	}{{"control", s.PID, granted}, {"engine", s.EnginePID, strings.Repeat("0", 16)}} {
		want := fmt.Sprintf("CapEff:\t%[1]s\nCapBnd:\t%[1]s\nNoNewPrivs:\t1\nSeccomp:\t2\n", p.set)
		if got := status(p.pid); got != want {
			m.t.Errorf("%s:\n%swant\n%s", p.name, got, want)
		}
		if got := m.run("grep", "^Max data size", fmt.Sprintf("/proc/%d/limits", p.pid)); !strings.Contains(got, "8589934592") {
			m.t.Errorf("%s: %s, want the limit of the unit", p.name, got)
		}
	}
	// A machine in a container may not protect the engine, so its score may be 0, too.
	scores := strings.Fields(m.run("cat", fmt.Sprintf("/proc/%d/oom_score_adj", s.PID), fmt.Sprintf("/proc/%d/oom_score_adj", s.EnginePID)))
	if scores[0] != "0" || scores[1] != "0" && scores[1] != "-900" {
		m.t.Errorf("OOM scores of control and engine %v, want 0 and -900", scores)
	}
}

// restarted reloads the unit after a change of its drop-in, and restarts it.
func (m *machine) restarted() {
	m.t.Helper()
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "restart", "weftd")
}

// The test installs a package, upgrades it while pings run, restarts the switch, and
// purges the package. No ping is lost, and no file of the package is left. lintian
// reports no error. The first version runs as root, as earlier versions did. The upgrade
// changes to the user weft. A restart changes back to root, and another one to weft again.
func TestPackage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: boots a machine of namespaces")
	}
	dir := packages(t)
	m := boot(t, dir)
	before := m.changed()
	defer lintian(t, filepath.Join(dir, filepath.Base(m.deb("1.1"))))()

	m.run("mkdir", filepath.Dir(dropIn))
	m.run("sh", "-c", "cat >"+dropIn+" <<'END'\n"+formerUnit+"END")
	m.run("dpkg", "-i", m.deb("1.0"))
	m.run("chown", "root:root", "/run/weft")
	if got := m.owners(); got != "root\n" {
		t.Errorf("the first version belongs to %s", got)
	}
	m.run("systemctl", "is-active", "weftd")
	m.run("systemd-analyze", "verify", "weftd.service", "weft-central.service")
	if s := m.show(); s.Commit != "first" || s.EngineCommit != "first" {
		t.Errorf("installed: %+v", s)
	}
	m.run("man", "-w", "weft", "weftd", "weft-central", "weft.toml", "weft-flows", "weft-ports")
	for n, name := range []string{"a", "b"} {
		m.run("ip", "netns", "add", name)
		m.addPort(name, "type=tap", "netns="+name)
		m.run("ip", "-n", name, "addr", "add", fmt.Sprintf("10.0.0.%d/24", n+1), "dev", name)
	}
	m.run("weft", "add-flow", "actions=normal")
	pings := m.startTrain("pings", "10.0.0.2")
	m.run("rm", dropIn)
	m.run("dpkg", "-i", m.deb("1.1"))
	if s := m.show(); s.Commit != "second" || s.EngineCommit != "second" || len(s.Ports) != 2 || s.Flows != 1 {
		t.Errorf("upgraded: %+v", s)
	}
	if got := m.owners(); got != "weft\n" {
		t.Errorf("the upgrade belongs to %s", got)
	}
	if s := m.show(); s.User != "weft" || len(s.MissingCapabilities) != 0 || slices.Contains(s.Capabilities, "CAP_DAC_OVERRIDE") {
		t.Errorf("the upgrade runs as %s with %v, lacks %v", s.User, s.Capabilities, s.MissingCapabilities)
	}
	m.checkPrivileges()
	m.run("sh", "-c", "cat >"+dropIn+" <<'END'\n"+formerUnit+"END")
	m.restarted() // back to root
	if s := m.show(); s.User != "root" || len(s.Ports) != 2 {
		t.Errorf("the way back: %+v", s)
	}
	m.run("rm", dropIn)
	m.restarted()
	if got := m.owners(); got != "weft\n" {
		t.Errorf("the second upgrade belongs to %s", got)
	}
	engine := m.show().EnginePID
	m.run("systemctl", "restart", "weftd")
	if pid := m.show().EnginePID; pid != engine {
		t.Errorf("engine %d after a restart, was %d", pid, engine)
	}
	lost, sent, longest := pings.lost()
	t.Logf("upgrade and restart: %d of %d pings lost, longest round trip %v", lost, sent, longest)
	if lost != 0 {
		t.Errorf("an upgrade and a restart lost %d of %d pings", lost, sent)
	}

	m.run("dpkg", "--purge", "weft")
	if out, err := m.try("ip", "-n", "a", "link", "show", "a"); err == nil {
		t.Errorf("the tap is still there: %s", out)
	}
	if out, err := m.try("pgrep", "-a", "weftd"); err == nil {
		t.Errorf("after the purge runs %s", out)
	}
	if out, err := m.try("grep", "weft", "/etc/passwd", "/etc/group", "/etc/gshadow"); err == nil {
		t.Errorf("users and groups after the purge: %s", out)
	}
	for _, path := range m.changed() {
		// Once a file in a directory has changed, the overlay file system lists the
		// directory of this machine, too.
		if there, err := os.Lstat(path); !slices.Contains(before, path) && (err != nil || !there.IsDir()) {
			t.Errorf("left by the purge: %s", path)
		}
	}
}

// lintian starts a check of a package in the background. The returned function waits
// for the end. It reports the errors that the package's overrides do not explain.
func lintian(t *testing.T, deb string) (end func()) {
	t.Helper()
	cmd := exec.Command("lintian", "--allow-root", "--fail-on", "error,warning", "--suppress-tags",
		"uses-no-compression-for-control-tarball,uses-no-compression-for-data-tarball", deb)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("lintian: %v:\n%s", err, out.String())
		}
	}
}

// readmeBlock returns the lines of the code block behind a comment of README.md.
func readmeBlock(t *testing.T, comment string) []string {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(text), "<!-- "+comment)
	_, block, _ := strings.Cut(after, "```\n")
	block, _, ended := strings.Cut(block, "\n```")
	if !found || !ended {
		t.Fatalf("README.md has no block behind %q", comment)
	}
	return strings.Split(block, "\n")
}

// number matches the words of the output of weft show that differ between runs and versions.
var number = regexp.MustCompile(`[0-9a-f]{12}|\d[\d.hms]*(-dev)?`)

// The command lines of README's tour and of its section "Using it" work one after the other on
// a machine with the package. "weft show" prints the lines that README shows; only numbers
// differ.
func TestREADME(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: boots a machine of namespaces")
	}
	m := boot(t, packages(t))
	m.run("dpkg", "-i", m.deb("1.0"))
	var out string
	for _, line := range readmeBlock(t, "tour:") {
		out = m.run("sh", "-c", line)
	}
	shape := func(text string) string {
		text = strings.NewReplacer("(commit first)", "(commit 0)").Replace(text)
		return strings.Join(strings.Fields(number.ReplaceAllString(text, "0")), " ")
	}
	if want, got := shape(strings.Join(readmeBlock(t, "tour's output"), "\n")), shape(out); got != want {
		t.Errorf("weft show prints\n%s\nREADME.md has\n%s", got, want)
	}
	m.run("sh", "-c", "ip link add eth0 type veth peer name eth1 && ip link set eth0 up")
	use := readmeBlock(t, "use:")
	if !strings.HasPrefix(use[0], "make deb && apt install") {
		t.Errorf("README.md begins with %q; this test installs the package in its place", use[0])
	}
	for _, line := range use[1:] {
		out = m.run("sh", "-c", line)
	}
	for _, port := range []string{"uplink", "vm1", "overlay"} {
		if !strings.Contains(out, " "+port+" ") {
			t.Errorf("weft show prints no port %s:\n%s", port, out)
		}
	}
}
