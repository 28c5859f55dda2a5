// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"weft/e2e/guest/agent"
)

const (
	bootLimit    = 90 * time.Second // time limit of a boot without KVM
	commandLimit = tryLimit
	// kvmLimit is the time limit of a boot under KVM. A boot normally takes a second,
	// but on some computers the kernel hangs.
	kvmLimit = 5 * time.Second
)

// VMConfig describes a virtual machine that is a guest of the switch. The machine has
// one CPU, 256 MiB of memory and at most one network device.
type VMConfig struct {
	Name string
	MAC  string
	// Vhost is the path of a vhost-user socket. Tap is the name of a tap of the host,
	// which QEMU connects to its own virtio device. If both are empty, the machine has
	// no network device.
	Vhost, Tap string
	// Serve makes QEMU create the vhost-user socket. The port option mode=client needs
	// this.
	Serve bool
	// Queues is the number of queue pairs; 0 means one.
	Queues int

	incoming string // socket for an incoming migration
}

// VM is a running virtual machine. Only one goroutine may call its methods.
type VM struct {
	VMConfig
	Console string // console output of kernel and agent

	host    *Host
	proc    *Process
	conn    net.Conn
	replies chan agent.Reply // closed at the end of the connection
	lastID  int
}

// image prepares the kernel and the initramfs of guests. It does so once in each process.
var image = sync.OnceValues(func() (files struct{ Kernel, Initramfs string }, err error) {
	if _, err := builtSwitch(); err != nil {
		return files, err
	}
	u := guestUserland
	u.binaries = []string{filepath.Join(binDir(), "weft")} // for weft bench
	files.Initramfs = filepath.Join(binDir(), "initramfs")
	files.Kernel, err = guestImage(files.Initramfs, &u)
	return files, err
})

// GuestImage writes the initramfs of a guest, without weft, to a file. It returns the path
// of the kernel.
func GuestImage(initramfs string) (kernel string, err error) {
	return guestImage(initramfs, &guestUserland)
}

func guestImage(initramfs string, u *userland) (kernel string, err error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".cache/guest-kernel")
	kernels, _ := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if len(kernels) != 1 {
		return "", fmt.Errorf("want one guest kernel in %s, have %d; run scripts/setup", dir, len(kernels))
	}
	bin, err := builtGuest()
	if err != nil {
		return "", err
	}
	return kernels[0], buildInitramfs(initramfs, filepath.Join(bin, "guest"), dir, u)
}

// Accelerator returns "kvm", or "tcg" (QEMU's emulation) with the reason why KVM cannot
// be used. To find out, it boots a machine, once in each process.
func (l *Lab) Accelerator() (accel, reason string) {
	l.T.Helper()
	accelOnce.Do(func() { accelName, accelWhy = l.probe() })
	return accelName, accelWhy
}

var (
	accelOnce           sync.Once
	accelName, accelWhy string
)

func (l *Lab) probe() (accel, reason string) {
	l.T.Helper()
	if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err != nil {
		return "tcg", fmt.Sprintf("no KVM: %v", err)
	} else {
		f.Close()
	}
	start := time.Now()
	vm, err := l.Host("kvm-probe").launch(VMConfig{Name: "probe"}, "kvm")
	if err == nil {
		err = vm.greeted(kvmLimit)
		vm.proc.Kill()
	}
	if _, broken := image(); broken != nil {
		l.T.Fatalf("lab: %v", broken)
	}
	if err != nil {
		return "tcg", fmt.Sprintf("/dev/kvm is there, but a guest does not boot under it: %v", err)
	}
	return "kvm", fmt.Sprintf("a guest booted under it in %.1f s", time.Since(start).Seconds())
}

// VM boots a virtual machine and waits for its agent. If c.Serve is set, the switch
// must already try to connect to the socket.
func (h *Host) VM(c VMConfig) *VM {
	h.lab.T.Helper()
	return h.VMs(c)[0]
}

// VMs boots several virtual machines at the same time.
func (h *Host) VMs(configs ...VMConfig) []*VM {
	h.lab.T.Helper()
	accel, _ := h.lab.Accelerator()
	check := func(vm *VM, err error) {
		h.lab.T.Helper()
		if err != nil {
			h.lab.T.Fatalf("%s: virtual machine %s (%s): %v%s", h.Name, vm.Name, accel, err, vm.troubles())
		}
	}
	var vms []*VM
	for _, c := range configs {
		vm, err := h.launch(c, accel)
		check(vm, err)
		vms = append(vms, vm)
	}
	for _, vm := range vms {
		check(vm, vm.greeted(bootLimit))
	}
	return vms
}

func (h *Host) newVM(c VMConfig) *VM {
	return &VM{VMConfig: c, host: h, Console: filepath.Join(h.lab.Dir, c.Name+".console"), replies: make(chan agent.Reply, 16)}
}

// launch starts QEMU and connects to the machine's agent. It returns a VM even if it
// also returns an error.
func (h *Host) launch(c VMConfig, accel string) (*VM, error) {
	h.lab.T.Helper()
	vm := h.newVM(c)
	files, err := image()
	if err != nil {
		return vm, err
	}
	serial := filepath.Join(h.lab.Dir, c.Name+".agent")
	os.Remove(serial)
	cpu := "max"
	if accel == "kvm" {
		cpu = "host"
	}
	args := []string{"qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "q35,memory-backend=mem,accel=" + accel, "-cpu", cpu, "-smp", "1", "-m", "256",
		"-object", "memory-backend-memfd,id=mem,size=256M,share=on",
		// no_timer_check, because the timer of an emulated machine may be late
		"-kernel", files.Kernel, "-initrd", files.Initramfs, "-append", "console=ttyS0 quiet no_timer_check",
		"-chardev", "file,id=console,path=" + vm.Console, "-serial", "chardev:console",
		"-chardev", "socket,id=agent,server=on,wait=off,path=" + serial, "-serial", "chardev:agent"}
	args = append(args, "-qmp", "unix:"+vm.qmp()+",server=on,wait=off")
	if c.incoming != "" {
		args = append(args, "-incoming", "unix:"+c.incoming)
	}
	vm.proc = h.Start(append(args, c.network(accel)...)...)
	vm.conn, err = vm.dial(serial)
	if err != nil {
		return vm, err
	}
	h.lab.cleanup(func() { vm.conn.Close() })
	go vm.listen(vm.conn, vm.replies)
	return vm, nil
}

func (c VMConfig) network(accel string) []string {
	if c.Tap != "" {
		return []string{"-netdev", "tap,id=net,script=no,downscript=no,ifname=" + c.Tap, "-device", "virtio-net-pci,netdev=net,romfile=,mac=" + c.MAC}
	}
	if c.Vhost == "" {
		return nil
	}
	chardev := "socket,id=vhost,path=" + c.Vhost
	if c.Serve {
		chardev += ",server=on"
	} else {
		chardev += ",reconnect=1" // interval of the attempts to connect again, in seconds
	}
	netdev := "vhost-user,id=net,chardev=vhost"
	device := "virtio-net-pci,netdev=net,romfile=,mrg_rxbuf=on,mac=" + c.MAC
	if c.Queues > 1 {
		netdev += fmt.Sprintf(",queues=%d", c.Queues)
		device += ",mq=on"
	}
	if accel == "tcg" {
		// QEMU 7.2 crashes with vhost-user and MSI-X without KVM, so MSI-X is off.
		device += ",vectors=0"
	} else if c.Queues > 1 {
		device += fmt.Sprintf(",vectors=%d", 2*c.Queues+2)
	}
	return []string{"-chardev", chardev, "-netdev", netdev, "-device", device}
}

func (vm *VM) dial(path string) (net.Conn, error) {
	for end := time.Now().Add(startLimit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", path); err == nil {
			return conn, nil
		}
		if !vm.proc.Alive() {
			return nil, vm.ended()
		}
	}
	return nil, errors.New("QEMU made no socket for the agent")
}

func (vm *VM) listen(conn net.Conn, replies chan<- agent.Reply) {
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r agent.Reply
		if json.Unmarshal(lines.Bytes(), &r) == nil {
			replies <- r
		}
	}
	close(replies)
}

func (vm *VM) greeted(limit time.Duration) error {
	_, err := vm.reply(0, limit)
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	return nil
}

func (vm *VM) reply(id int, limit time.Duration) (agent.Reply, error) {
	timeout := time.After(limit)
	for {
		select {
		case r, ok := <-vm.replies:
			if !ok {
				return r, vm.ended()
			}
			if r.ID == id {
				return r, nil
			}
		case <-timeout:
			return agent.Reply{}, fmt.Errorf("no word from the agent in %v", limit)
		}
	}
}

func (vm *VM) send(req agent.Request) error {
	data, err := json.Marshal(req)
	if err != nil {
		return err
	}
	_, err = vm.conn.Write(append(data, '\n'))
	return err
}

func (vm *VM) ask(req agent.Request) (agent.Reply, error) {
	vm.lastID++
	req.ID = vm.lastID
	if err := vm.send(req); err != nil {
		return agent.Reply{}, err
	}
	r, err := vm.reply(req.ID, commandLimit)
	if err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	return r, err
}

func (vm *VM) String() string { return vm.Name }

// Try runs a command in the machine.
func (vm *VM) Try(args ...string) (string, error) {
	r, err := vm.ask(agent.Request{Run: args})
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", strings.Join(args, " "), r.Exit, strings.TrimSpace(r.Output))
	}
	return r.Output, err
}

// Run runs a command in the machine and returns its output. If the command fails, the
// test ends.
func (vm *VM) Run(args ...string) string {
	vm.host.lab.T.Helper()
	out, err := vm.Try(args...)
	if err != nil {
		vm.host.lab.T.Fatalf("%s: %v%s", vm.Name, err, vm.troubles())
	}
	return out
}

// Spawn starts a command in the virtual machine. The command runs in the background.
func (vm *VM) Spawn(args ...string) {
	vm.host.lab.T.Helper()
	if _, err := vm.ask(agent.Request{Spawn: args}); err != nil {
		vm.host.lab.T.Fatalf("%s: %s: %v", vm.Name, strings.Join(args, " "), err)
	}
}

// Address assigns an IP address and an MTU to the machine's eth0, and brings eth0 up.
func (vm *VM) Address(cidr string, mtu int) {
	vm.host.lab.T.Helper()
	vm.Run("ip", "address", "add", cidr, "dev", "eth0")
	vm.Run("ip", "link", "set", "eth0", "mtu", fmt.Sprint(mtu), "up")
}

// Reboot restarts the virtual machine. The machine loses its network configuration.
func (vm *VM) Reboot() {
	vm.host.lab.T.Helper()
	err := vm.send(agent.Request{Reboot: true})
	if err == nil {
		err = vm.greeted(bootLimit)
	}
	if err != nil {
		vm.host.lab.T.Fatalf("%s: reboot: %v%s", vm.Name, err, vm.troubles())
	}
}

// Kill kills the machine's QEMU process by SIGKILL.
func (vm *VM) Kill() { vm.proc.Kill() }

// Pause stops the QEMU process with SIGSTOP. Resume lets it continue.
func (vm *VM) Pause()  { vm.proc.Signal(syscall.SIGSTOP) }
func (vm *VM) Resume() { vm.proc.Signal(syscall.SIGCONT) }

func (vm *VM) troubles() string {
	if vm.proc == nil {
		return ""
	}
	console, _ := os.ReadFile(vm.Console)
	return "\nQEMU: " + tail(vm.proc.Output()) + "\nconsole: " + tail(string(console))
}

func (vm *VM) ended() error {
	err := vm.proc.Wait(time.Second)
	return fmt.Errorf("QEMU ended: %w: %s", err, firstLine(vm.proc.Output()))
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if line == "" {
		return "no output"
	}
	return line
}

func tail(s string) string {
	if len(s) > 2000 {
		s = "..." + s[len(s)-2000:]
	}
	return strings.TrimSpace(s)
}

var _ = []Guest{(*Host)(nil), (*VM)(nil)}

// Have reports whether a program is installed on the machine that runs the tests.
func Have(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}
