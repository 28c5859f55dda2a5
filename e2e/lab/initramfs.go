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

type userland struct {
	// programs of this machine to copy, with the shared libraries that their ELF headers require
	programs []string
	// shared libraries that the programs load at run time
	libraries []string
	// names of commands that busybox provides
	links []string
	// paths of files of this machine to copy to /bin
	binaries []string
	// kernel modules to load, with the modules that they depend on
	modules []string
}

// guestUserland has the programs and modules of a virtual machine that is a guest of the
// switch. The commands of weft bench need the modules for vsock.
var guestUserland = userland{
	programs: []string{"busybox", "ping", "iperf3", "ethtool"},
	links:    []string{"sh", "ip"},
	modules:  []string{"virtio_pci", "virtio_net", "8021q", "vmw_vsock_virtio_transport", "vsock_loopback"},
}

// libraryDirs are the directories in which the dynamic loader looks for libraries. The first two are
// those of Debian for amd64.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib"}

// buildInitramfs writes a root file system with the agent as /init, and with the
// programs and modules of u. Kernel modules come from the unpacked kernel package in
// kernelDir.
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

// addProgram adds an ELF file with its interpreter and shared libraries. The map "done" has the
// files that the archive already has.
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

// addModules adds kernel modules and a list of their files. In the list, a module's
// dependencies come before it.
func addModules(c *cpioWriter, kernelDir string, modules []string) error {
	found, err := filepath.Glob(filepath.Join(kernelDir, "lib/modules/*/kernel"))
	if err == nil && len(found) == 0 { // path in packages since Debian 13
		found, err = filepath.Glob(filepath.Join(kernelDir, "usr/lib/modules/*/kernel"))
	}
	if err != nil || len(found) != 1 {
		return fmt.Errorf("want one kernel in %s, have %d", kernelDir, len(found))
	}
	files := map[string]string{} // file of each module, by module name
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
		if seen[name] || files[name] == "" { // without a file, the module is built into the kernel
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

// readModule returns a kernel module without compression, because the agent in the
// virtual machine has no xz.
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

// moduleDepends returns the modules that a kernel module depends on. They are in the
// entry "depends=" of the section .modinfo. The section's entries have the form
// key=value and end with a zero byte.
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
