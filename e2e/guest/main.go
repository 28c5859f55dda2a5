// SPDX-License-Identifier: Apache-2.0

// Command guest is the init process of the tests' virtual machines. It mounts file
// systems, loads network modules, and runs the commands that the lab sends.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/guest/agent"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is the init of a virtual machine, see e2e/lab")
		os.Exit(1)
	}
	if err := serve(); err != nil {
		fmt.Println("guest:", err)
	}
	halt(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func serve() error {
	os.Setenv("PATH", "/bin")
	if err := mount(); err != nil {
		return err
	}
	port, err := openPort(agent.Port)
	if err != nil {
		return err
	}
	if err := loadModules(agent.Modules); err != nil {
		fmt.Println("guest:", err) // the lab looks for this message on the console
	}
	bringUp("lo")
	if err := waitFor("/sys/class/net/eth0", 60*time.Second); err != nil {
		fmt.Println("guest:", err)
	}

	replies := json.NewEncoder(port)
	if err := replies.Encode(agent.Reply{Output: agent.Version}); err != nil {
		return err
	}
	lines := bufio.NewScanner(port)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var req agent.Request
		if err := json.Unmarshal(lines.Bytes(), &req); err != nil {
			fmt.Println("guest: request:", err)
			continue
		}
		if req.Reboot {
			halt(unix.LINUX_REBOOT_CMD_RESTART)
		}
		if err := replies.Encode(answer(req)); err != nil {
			return err
		}
	}
	return lines.Err()
}

func answer(req agent.Request) agent.Reply {
	reply := agent.Reply{ID: req.ID}
	fail := func(err error) agent.Reply {
		reply.Exit, reply.Error = -1, err.Error()
		return reply
	}
	switch {
	case len(req.Run) > 0:
		out, err := exec.Command(req.Run[0], req.Run[1:]...).CombinedOutput()
		reply.Output = string(out)
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			reply.Exit = exit.ExitCode()
		} else if err != nil {
			return fail(err)
		}
	case len(req.Spawn) > 0:
		cmd := exec.Command(req.Spawn[0], req.Spawn[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr // the console
		if err := cmd.Start(); err != nil {
			return fail(err)
		}
		go cmd.Wait()
	default:
		return fail(errors.New("request without a command"))
	}
	return reply
}

func mount() error {
	for _, m := range []struct{ fstype, path string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
	} {
		if err := os.MkdirAll(m.path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.path, m.fstype, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mount %s: %w", m.path, err)
		}
	}
	return nil
}

// openPort opens a serial port in raw mode.
func openPort(path string) (*os.File, error) {
	port, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	raw := unix.Termios{Cflag: unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200}
	raw.Cc[unix.VMIN] = 1
	if err := unix.IoctlSetTermios(int(port.Fd()), unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return port, nil
}

func loadModules(list string) error {
	data, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	for _, path := range strings.Fields(string(data)) {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && err != unix.EEXIST {
			return fmt.Errorf("module %s: %w", filepath.Base(path), err)
		}
	}
	return nil
}

func bringUp(dev string) {
	if out, err := exec.Command("busybox", "ip", "link", "set", dev, "up").CombinedOutput(); err != nil {
		fmt.Printf("guest: %s up: %v: %s\n", dev, err, out)
	}
}

// waitFor waits until path, which belongs to a network device, exists: the kernel probes devices in the
// background. In a machine without a network device on PCI it returns at once.
func waitFor(path string, limit time.Duration) error {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		if nics, _ := filepath.Glob("/sys/bus/pci/devices/*/class"); !anyNetwork(nics) {
			return nil
		}
	}
	return fmt.Errorf("%s did not appear in %s", path, limit)
}

// anyNetwork reports whether a file of the list classes contains the PCI class of a
// network device.
func anyNetwork(classes []string) bool {
	for _, path := range classes {
		if class, _ := os.ReadFile(path); strings.HasPrefix(string(class), "0x02") {
			return true
		}
	}
	return false
}

func halt(command int) {
	unix.Sync()
	unix.Reboot(command)
	select {} // the kernel panics if init returns
}
