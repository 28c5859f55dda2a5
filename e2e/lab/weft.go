// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Time limits for a start and a stop of weftd. They are long, because the machine may be busy.
const (
	startLimit = 60 * time.Second
	stopLimit  = 60 * time.Second
)

func binDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("weft%d-bin", os.Getpid()))
}

// Root returns the root directory of the module.
var Root = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == "/" {
			return "", errors.New("not in the source tree: no go.mod above the working directory")
		}
	}
})

// These functions build the programs, once in each process and without cgo. They return
// the directory of the programs.
var (
	builtSwitch  = sync.OnceValues(func() (string, error) { return build("./cmd/weftd", "./cmd/weft") })
	builtCentral = sync.OnceValues(func() (string, error) { return build("./cmd/weft-central") })
	builtGuest   = sync.OnceValues(func() (string, error) { return build("./e2e/guest") })
	builtCNI     = sync.OnceValues(func() (string, error) {
		return build("./cmd/weft-cni", "github.com/containernetworking/cni/cnitool", "github.com/containernetworking/plugins/plugins/ipam/host-local")
	})
)

func build(packages ...string) (string, error) { return binDir(), GoBuild(binDir(), packages...) }

// GoBuild builds programs into a directory, without cgo. args are options of go build,
// followed by packages.
func GoBuild(dir string, args ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cmd := exec.Command("go", append([]string{"build", "-o", dir}, args...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
}

// Build builds the programs of the switch now, before a test needs them.
func (l *Lab) Build() {
	l.T.Helper()
	l.binary("")
}

// Programs builds weftd, weft and weft-central, and returns their directory.
func (l *Lab) Programs() (dir string) {
	l.T.Helper()
	l.central()
	return filepath.Dir(l.binary("weftd"))
}

// CNI builds weft-cni, and cnitool and host-local of the CNI project. It returns their
// directory.
func (l *Lab) CNI() (dir string) {
	l.T.Helper()
	dir, err := builtCNI()
	if err != nil {
		l.T.Fatalf("lab: %v", err)
	}
	return dir
}

// Binaries is a directory with programs that labs use instead of built ones, to compare with
// another version; "": none.
var Binaries string

func (l *Lab) binary(name string) string {
	l.T.Helper()
	if Binaries != "" {
		return filepath.Join(Binaries, name)
	}
	dir, err := builtSwitch()
	if err != nil {
		l.T.Fatalf("lab: %v", err)
	}
	return filepath.Join(dir, name)
}

func (l *Lab) central() string {
	l.T.Helper()
	if Binaries != "" {
		return filepath.Join(Binaries, "weft-central")
	}
	dir, err := builtCentral()
	if err != nil {
		l.T.Fatalf("lab: %v", err)
	}
	return filepath.Join(dir, "weft-central")
}

// Daemon is a weftd that runs in a host's network namespace.
type Daemon struct {
	Host   *Host
	Socket string // socket of the API
	State  string // state directory
	// Echo, if set, is called with each command line of the weft client.
	Echo func(line string)
	// Programs is the directory of the weftd that the next Start starts; "": the one that the lab
	// has built
	Programs string

	proc  *Process
	extra []string
}

// Weftd starts weftd on the host and waits until its API answers. extra has further
// arguments.
func (h *Host) Weftd(extra ...string) *Daemon {
	h.lab.T.Helper()
	dir := filepath.Join(h.lab.Dir, h.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		h.lab.T.Fatalf("lab: %v", err)
	}
	d := &Daemon{Host: h, Socket: filepath.Join(dir, "weft.sock"), State: filepath.Join(dir, "state"), extra: extra}
	h.lab.mu.Lock()
	h.lab.daemons = append(h.lab.daemons, d)
	h.lab.mu.Unlock()
	d.Start()
	return d
}

// Start starts weftd again, with its earlier state directory, and waits until its API answers.
func (d *Daemon) Start() {
	l := d.Host.lab
	l.T.Helper()
	weftd := filepath.Join(d.Programs, "weftd")
	if d.Programs == "" {
		weftd = l.binary("weftd")
	}
	d.proc = d.Host.Start(append([]string{weftd, "--socket", d.Socket, "--state", d.State}, d.extra...)...)
	var last error
	for end := time.Now().Add(startLimit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if !d.proc.Alive() {
			l.T.Fatalf("%s: weftd ended at once: %v\n%s", d.Host.Name, d.proc.err, d.proc.Output())
		}
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		out, err := d.command(ctx, "show").CombinedOutput()
		cancel()
		if last = err; err == nil {
			return
		}
		last = fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	l.T.Fatalf("%s: weftd does not answer after %v: %v\n%s", d.Host.Name, startLimit, last, d.proc.Output())
}

// Restart stops the control process with SIGTERM, and starts it again with other arguments. The
// engine process keeps forwarding meanwhile.
func (d *Daemon) Restart(extra ...string) {
	d.Host.lab.T.Helper()
	d.Terminate()
	d.extra = extra
	d.Start()
}

// Terminate stops the control process with SIGTERM. The engine process goes on forwarding.
func (d *Daemon) Terminate() {
	d.Host.lab.T.Helper()
	d.proc.Signal(syscall.SIGTERM)
	if err := d.proc.Wait(stopLimit); err != nil {
		d.Host.lab.T.Fatalf("%s: weftd after SIGTERM: %v\n%s", d.Host.Name, err, d.proc.Output())
	}
}

// Binary returns the path of the daemon's program weftd or weft.
func (d *Daemon) Binary(name string) string { return d.Host.lab.binary(name) }

// Control returns the weftd process that the last Start has begun, for example to kill it. The engine is
// another process, see EnginePID.
func (d *Daemon) Control() *Process { return d.proc }

// EnginePID returns the engine's process id, or 0.
func (d *Daemon) EnginePID() int {
	text, _ := os.ReadFile(filepath.Join(d.State, "engine.lock"))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if args := strings.Split(string(cmdline), "\x00"); len(args) > 1 && filepath.Base(args[0]) == "weftd" && args[1] == "engine" {
		return pid
	}
	return 0
}

// KillEngine ends the engine by SIGKILL.
func (d *Daemon) KillEngine() {
	d.Host.lab.T.Helper()
	pid := d.EnginePID()
	if pid == 0 {
		d.Host.lab.T.Fatalf("%s: no engine runs\n%s", d.Host.Name, d.proc.Output())
	}
	syscall.Kill(pid, syscall.SIGKILL)
}

// Stop shuts the switch down. It fails the test if weftd or its engine takes too long
// to end.
func (d *Daemon) Stop() {
	d.Host.lab.T.Helper()
	d.Weft("shutdown")
	if err := d.proc.Wait(stopLimit); err != nil {
		d.Host.lab.T.Fatalf("%s: weftd after a shutdown: %v\n%s", d.Host.Name, err, d.proc.Output())
	}
	for end := time.Now().Add(stopLimit); d.EnginePID() != 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			d.Host.lab.T.Fatalf("%s: the engine outlives weftd\n%s", d.Host.Name, d.proc.Output())
		}
	}
}

func (d *Daemon) terminate() {
	if d.proc != nil && d.proc.cmd.Process != nil && d.proc.Alive() {
		d.proc.Signal(syscall.SIGINT)
		d.proc.Wait(stopLimit)
	}
}

func (d *Daemon) command(ctx context.Context, args ...string) *exec.Cmd {
	return d.Host.commandContext(ctx, append([]string{d.Host.lab.binary("weft"), "--socket", d.Socket}, args...)...)
}

// Weft runs the weft client. If it fails, the test ends. On a busy machine weftd may
// abandon a change that takes effect later. Weft then repeats the command.
func (d *Daemon) Weft(args ...string) string {
	d.Host.lab.T.Helper()
	out, stderr, code := d.TryWeft(args...)
	for end := time.Now().Add(startLimit); code != 0 && strings.Contains(stderr, abandoned) && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
		if out, stderr, code = d.TryWeft(repetition(args)...); code != 0 && applied(args, stderr) {
			code = 0
		}
	}
	if code != 0 {
		d.Host.lab.T.Fatalf("%s: weft %s: exit code %d: %s", d.Host.Name, strings.Join(args, " "), code, stderr)
	}
	return out
}

// TryWeft runs the weft client and returns its output and its exit code.
func (d *Daemon) TryWeft(args ...string) (stdout, stderr string, code int) {
	if d.Echo != nil {
		d.Echo("weft " + shellJoin(args))
	}
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), tryLimit)
	defer cancel()
	cmd := d.command(ctx, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	code = cmd.ProcessState.ExitCode()
	if err != nil && code == 0 {
		code = -1
	}
	return out.String(), errs.String(), code
}

// abandoned is a part of the error text with which weftd abandons a change that may still take
// effect.
const abandoned = "the change may still take effect"

// repetition returns the arguments with which Daemon.Weft repeats a weft command. A repeated command
// about a bridge or a port succeeds even if its first attempt has taken effect.
func repetition(args []string) []string {
	switch args[0] {
	case "add-br", "add-port":
		return append([]string{args[0], "--may-exist"}, args[1:]...)
	case "del-br", "del-port":
		return append([]string{args[0], "--if-exists"}, args[1:]...)
	}
	return args
}

// applied reports whether a repeated command failed with stderr because the first attempt has
// taken effect. It is for commands without an option such as --may-exist.
func applied(args []string, stderr string) bool {
	words := map[string]string{
		"add-group": "expected a number that no group has", "add-meter": "expected a number that no meter has", "add-tlv-map": "the field is mapped already",
	}[args[0]]
	return words != "" && strings.Contains(stderr, words)
}

// WeftJSON runs the weft client with --json and decodes its output into v.
func (d *Daemon) WeftJSON(v any, args ...string) {
	d.Host.lab.T.Helper()
	out := d.Weft(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		d.Host.lab.T.Fatalf("%s: weft %s --json: %v:\n%s", d.Host.Name, strings.Join(args, " "), err, out)
	}
}

// Tap adds a tap port with the guest's name. The tap becomes eth0 in the guest's
// namespace.
func (d *Daemon) Tap(guest *Host, mac, cidr string, mtu int, options ...string) {
	d.Host.lab.T.Helper()
	d.Weft(append([]string{"add-port", guest.Name, "type=tap", "dev=eth0", "netns=" + guest.NS, "mac=" + mac, fmt.Sprint("mtu=", mtu)}, options...)...)
	if cidr != "" {
		guest.Address("eth0", cidr)
	} else {
		guest.Run("ip", "link", "set", "eth0", "up")
	}
}

// shellJoin joins the arguments to a command line, quoted for a shell.
func shellJoin(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = a
		if a == "" || strings.ContainsAny(a, " ()<>&|;*$'\"\\") {
			words[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}
