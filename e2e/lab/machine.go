// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// MachineConfig describes a virtual machine that runs the switch. The machine has two CPUs, 512
// MiB of memory and a network card. A simulated cable connects the card to another machine.
type MachineConfig struct {
	Name string
	// Card is the model of the network card: igb or virtio-net-pci.
	Card string
	MAC  string
	// Options are further options of QEMU for the card, each with a comma in front.
	Options string
	// Cable is the path of a unix socket that connects the cards of two machines. The
	// machine with Serve set creates the socket and starts first.
	Cable string
	Serve bool
}

// Machine is a virtual machine that runs the switch. Its network card is eth0.
type Machine struct {
	*VM
	monitor string // path of QEMU's monitor socket
}

// machineUserland has the programs and modules of a machine that runs the switch. It has the
// full programs ip and ss, because busybox's versions do not support namespaces and AF_XDP
// sockets.
var machineUserland = userland{
	programs: []string{"busybox", "ping", "iperf3", "ip", "ss", "ethtool", "iptables-legacy"},
	libraries: []string{"/usr/lib/x86_64-linux-gnu/xtables/libxt_standard.so", "/usr/lib/x86_64-linux-gnu/xtables/libxt_conntrack.so",
		"/usr/lib/x86_64-linux-gnu/xtables/libxt_MASQUERADE.so"},
	links: []string{"sh", "cat", "grep", "kill", "tail"},
	modules: []string{"virtio_pci", "virtio_net", "igb", "tun", "veth", "vxlan", "bridge", "xsk_diag",
		"iptable_filter", "iptable_nat", "xt_conntrack", "xt_MASQUERADE", "vsock_loopback"},
}

// emulator is a QEMU of version 10 or later: the one that "scripts/setup nic" installs, or the
// system's own.
type emulator struct {
	command           []string
	kernel, initramfs string
}

// machineImage prepares the emulator, the kernel and the initramfs. It does so once in
// each process.
var machineImage = sync.OnceValues(func() (*emulator, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, ".cache/nic")
	e := &emulator{command: []string{"qemu-system-x86_64"}}
	if qemu := filepath.Join(dir, "qemu/usr"); exists(qemu) {
		e.command = []string{"env", "LD_LIBRARY_PATH=" + qemu + "/lib/x86_64-linux-gnu", qemu + "/bin/qemu-system-x86_64",
			"-L", qemu + "/share/seabios", "-L", qemu + "/share/qemu"}
	}
	for _, pattern := range []string{"kernel/boot/vmlinuz-*", "kernel/usr/lib/modules/*/vmlinuz"} {
		if found, _ := filepath.Glob(filepath.Join(dir, pattern)); len(found) == 1 {
			e.kernel = found[0]
		}
	}
	if e.kernel == "" {
		return nil, fmt.Errorf("want one kernel in %s/kernel; run scripts/setup nic", dir)
	}
	bin, err := builtGuest()
	if err != nil {
		return nil, err
	}
	if _, err := builtSwitch(); err != nil {
		return nil, err
	}
	u := machineUserland
	u.binaries = []string{filepath.Join(bin, "weftd"), filepath.Join(bin, "weft")}
	e.initramfs = filepath.Join(bin, "machine.initramfs")
	return e, buildInitramfs(e.initramfs, filepath.Join(bin, "guest"), filepath.Join(dir, "kernel"), &u)
})

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Machine starts a virtual machine and does not wait for its boot, so that several machines can boot at
// the same time. The method Booted waits for the boot.
func (h *Host) Machine(c MachineConfig) *Machine {
	h.lab.T.Helper()
	accel, _ := h.lab.Accelerator()
	e, err := machineImage()
	if err != nil {
		h.lab.T.Fatalf("lab: %v", err)
	}
	m := &Machine{VM: h.newVM(VMConfig{Name: c.Name, MAC: c.MAC}), monitor: filepath.Join(h.lab.Dir, c.Name+".monitor")}
	serial := filepath.Join(h.lab.Dir, c.Name+".agent")
	for _, stale := range []string{serial, m.monitor} {
		os.Remove(stale)
	}
	if c.Serve {
		os.Remove(c.Cable)
	}
	cable := "stream,id=cable,addr.type=unix,addr.path=" + c.Cable
	if c.Serve {
		cable += ",server=on"
	} else {
		cable += ",server=off"
	}
	cpu := "max"
	if accel == "kvm" {
		cpu = "host"
	}
	device := c.Card + ",id=card,netdev=cable,romfile=,mac=" + c.MAC + c.Options
	args := append([]string{}, e.command...)
	args = append(args, "-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35,accel="+accel, "-cpu", cpu, "-smp", "2", "-m", "512",
		"-kernel", e.kernel, "-initrd", e.initramfs, "-append", "console=ttyS0 quiet panic=-1 tsc=reliable lsm=landlock",
		"-chardev", "file,id=console,path="+m.Console, "-serial", "chardev:console",
		"-chardev", "socket,id=agent,server=on,wait=off,path="+serial, "-serial", "chardev:agent",
		"-monitor", "unix:"+m.monitor+",server=on,wait=off",
		"-netdev", cable, "-device", device)
	m.proc = h.Start(args...)
	if m.conn, err = m.dial(serial); err == nil && c.Serve {
		err = m.served(c.Cable)
	}
	if err != nil {
		h.lab.T.Fatalf("machine %s (%s): %v%s", c.Name, accel, err, m.troubles())
	}
	h.lab.cleanup(func() { m.conn.Close() })
	go m.listen(m.conn, m.replies)
	return m
}

func (m *Machine) served(path string) error {
	for end := time.Now().Add(startLimit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if exists(path) {
			return nil
		}
		if !m.proc.Alive() {
			return m.ended()
		}
	}
	return fmt.Errorf("QEMU made no socket %s", path)
}

// Booted waits until the machine's agent answers. Without KVM, a kernel with two CPUs sometimes
// hangs during boot, so the caller must start the machine again after an error.
func (m *Machine) Booted(limit time.Duration) error {
	if err := m.greeted(limit); err != nil {
		return fmt.Errorf("machine %s: %w%s", m.Name, err, m.troubles())
	}
	return nil
}

// Plug plugs the cable of the machine's network card in or out.
func (m *Machine) Plug(plugged bool) {
	m.host.lab.T.Helper()
	state := "off"
	if plugged {
		state = "on"
	}
	conn, err := net.Dial("unix", m.monitor)
	if err == nil {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(startLimit))
		_, err = conn.Write([]byte("set_link card " + state + "\n"))
	}
	// QEMU's monitor prints a prompt at the start, and a second one after the command.
	for seen := ""; err == nil && strings.Count(seen, "(qemu) ") < 2; {
		buf := make([]byte, 4096)
		var n int
		n, err = conn.Read(buf)
		seen += string(buf[:n])
	}
	if err != nil {
		m.host.lab.T.Fatalf("machine %s: set_link %s: %v", m.Name, state, err)
	}
}

// Namespace is a network namespace inside a Machine. It stands for a guest of the machine's
// switch.
type Namespace struct {
	Machine *Machine
	Name    string
}

// Namespace adds a network namespace to the machine, with its loopback device up.
func (m *Machine) Namespace(name string) *Namespace {
	m.host.lab.T.Helper()
	m.Run("ip", "netns", "add", name)
	n := &Namespace{Machine: m, Name: name}
	n.Machine.Run("ip", "-n", name, "link", "set", "lo", "up")
	return n
}

func (n *Namespace) String() string { return n.Machine.Name + "/" + n.Name }

// Try runs a command in the namespace and returns its output. Spawn starts one in the background.
func (n *Namespace) Try(args ...string) (string, error) { return n.Machine.Try(n.Command(args...)...) }
func (n *Namespace) Spawn(args ...string)               { n.Machine.Spawn(n.Command(args...)...) }

// Command returns a command line that runs in the namespace.
func (n *Namespace) Command(args ...string) []string {
	return append([]string{"ip", "netns", "exec", n.Name}, args...)
}

var _ = []Guest{(*Machine)(nil), (*Namespace)(nil)}
