// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"weft/e2e/guest/agent"
)

// userland lists the files of a virtual machine's root file system.
type userland struct {
	// programs are programs of the host. They are copied together with the shared
	// libraries in their ELF headers.
	programs []string
	// libraries are shared libraries that the programs load at run time, without a
	// reference in their ELF headers.
	libraries []string
	// links are the names of commands that busybox provides.
	links []string
	// binaries are the paths of files of the host that are copied to /bin.
	binaries []string
	// modules are the names of kernel modules to load, together with their
	// dependencies.
	modules []string
}

// guestUserland is the userland of a virtual machine that is a guest of the switch.
// Its kernel modules are for the network device, for VLAN tags and for vsock, over
// which the bench commands reach the machine.
var guestUserland = userland{
	programs: []string{"busybox", "ping", "iperf3", "ethtool"},
	links:    []string{"sh", "ip"},
	modules:  []string{"virtio_pci", "virtio_net", "8021q", "vmw_vsock_virtio_transport", "vsock_loopback"},
}

// libraryDirs are the directories in which the dynamic loader searches for shared
// libraries. The first one is the multiarch directory of amd64.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib"}

// buildInitramfs writes the first root file system of virtual machines to path. It
// contains the agent as /init, and the programs, libraries and kernel modules of the
// userland. The modules come from the unpacked kernel package.
func buildInitramfs(path, agentBinary, kernelDir string, u *userland) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer out.Close()
	c := newCpioWriter(out)
	if err := addAll(c, agentBinary, kernelDir, u); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	if err := c.Close(); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	return out.Close()
}

func addAll(c *cpioWriter, agentBinary, kernelDir string, u *userland) error {
	init, err := os.ReadFile(agentBinary)
	if err != nil {
		return err
	}
	for _, dir := range []string{"proc", "sys", "dev", "tmp", "run"} {
		c.Dir(dir)
	}
	c.File("init", init)
	done := map[string]bool{}
	for _, name := range u.programs {
		host, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("%w; run scripts/setup", err)
		}
		if err := addProgram(c, host, "bin/"+name, done); err != nil {
			return err
		}
	}
	for _, path := range u.libraries {
		if err := addProgram(c, path, path, done); err != nil {
			return err
		}
	}
	for _, name := range u.links {
		c.Symlink("bin/"+name, "busybox")
	}
	for _, path := range u.binaries {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		c.File("bin/"+filepath.Base(path), data)
	}
	return addModules(c, kernelDir, u.modules)
}

// addProgram adds the host's ELF file under the given name, together with its
// interpreter and its shared libraries. It adds each file only once.
func addProgram(c *cpioWriter, host, name string, done map[string]bool) error {
	if done[name] {
		return nil
	}
	done[name] = true
	data, err := os.ReadFile(host)
	if err != nil {
		return err
	}
	c.File(name, data)
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("%s: %w", host, err)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		interp := make([]byte, p.Filesz)
		if _, err := p.ReadAt(interp, 0); err != nil {
			return fmt.Errorf("%s: %w", host, err)
		}
		loader := string(bytes.TrimRight(interp, "\x00"))
		if err := addProgram(c, loader, loader, done); err != nil {
			return err
		}
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", host, err)
	}
	for _, lib := range libraries {
		at, err := findLibrary(lib)
		if err != nil {
			return fmt.Errorf("%s: %w", host, err)
		}
		if err := addProgram(c, at, at, done); err != nil {
			return err
		}
	}
	return nil
}

func findLibrary(name string) (string, error) {
	for _, dir := range libraryDirs {
		at := filepath.Join(dir, name)
		if _, err := os.Stat(at); err == nil {
			return at, nil
		}
	}
	return "", fmt.Errorf("library %s not found in %s", name, strings.Join(libraryDirs, ", "))
}

// addModules adds the userland's kernel modules and a file that lists them. In the
// list, each module follows its dependencies.
func addModules(c *cpioWriter, kernelDir string, modules []string) error {
	found, err := filepath.Glob(filepath.Join(kernelDir, "lib/modules/*/kernel"))
	if err == nil && len(found) == 0 { // path in packages since Debian 13
		found, err = filepath.Glob(filepath.Join(kernelDir, "usr/lib/modules/*/kernel"))
	}
	if err != nil || len(found) != 1 {
		return fmt.Errorf("want one kernel in %s, have %d", kernelDir, len(found))
	}
	files := map[string]string{} // path of each module's file, by the name of the module
	err = filepath.WalkDir(found[0], func(path string, _ os.DirEntry, err error) error {
		if stem, _, ok := strings.Cut(filepath.Base(path), ".ko"); ok && err == nil {
			files[strings.ReplaceAll(stem, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return err
	}
	var list []string
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] || files[name] == "" { // the module has no file because it is built into the kernel
			return nil
		}
		seen[name] = true
		data, err := readModule(files[name])
		if err != nil {
			return err
		}
		needs, err := moduleDepends(data)
		if err != nil {
			return fmt.Errorf("%s: %w", files[name], err)
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		at := "/modules/" + name + ".ko"
		c.File(at, data)
		list = append(list, at)
		return nil
	}
	for _, name := range modules {
		if err := add(name); err != nil {
			return err
		}
	}
	c.File(agent.Modules, []byte(strings.Join(list, "\n")+"\n"))
	return nil
}

// readModule returns a kernel module's contents. It decompresses the module, because
// the agent has no xz.
func readModule(path string) ([]byte, error) {
	if !strings.HasSuffix(path, ".xz") {
		return os.ReadFile(path)
	}
	data, err := exec.Command("xz", "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("xz -dc %s: %w", path, err)
	}
	return data, nil
}

// moduleDepends returns the names of the modules on which a module depends. They are
// in the entry "depends=" of the section .modinfo, which consists of strings
// key=value that each end with a zero byte. The program depmod uses the same entry.
func moduleDepends(ko []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("no .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if value, ok := bytes.CutPrefix(field, []byte("depends=")); ok {
			return strings.FieldsFunc(strings.ReplaceAll(string(value), "-", "_"), func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}
