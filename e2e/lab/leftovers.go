// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// leftoverName matches the names of namespaces and files of a lab, of cgroups of e2e/install,
// and of namespaces of internal/testnet. The number is the process id of the program that
// made them.
var leftoverName = regexp.MustCompile(`^weft(?:-t)?([0-9]+)-`)

// sweep removes namespaces and files of programs that no longer run.
func sweep() {
	sweepOf(func(name string, pid int) bool {
		if pid == os.Getpid() { // this program has no lab yet, so an earlier program had the same process id
			return strings.HasPrefix(name, fmt.Sprintf("weft%d-", pid)) && name != filepath.Base(binDir())
		}
		return syscall.Kill(pid, 0) == syscall.ESRCH
	})
}

// Guard removes namespaces, cgroups and files that earlier programs have left. It also starts a
// process that removes those of this program if this program is killed.
func Guard() { sweepOnce.Do(func() { sweep(); startGuard() }) }

// sweepOf removes the namespaces, cgroups and files of labs for which the function "stale" returns
// true. Its arguments are the name and the process id in the name.
func sweepOf(stale func(name string, pid int) bool) {
	dirs := []string{"/run/netns", os.TempDir()}
	groups := GroupRoot()
	if groups != "" {
		dirs = append(dirs, groups)
	}
	for _, dir := range dirs {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			m := leftoverName.FindStringSubmatch(e.Name())
			if m == nil {
				continue
			}
			if pid, err := strconv.Atoi(m[1]); err != nil || !stale(e.Name(), pid) {
				continue
			}
			switch dir {
			case "/run/netns":
				removeNamespace(e.Name())
			case groups:
				_ = RemoveGroup(filepath.Join(dir, e.Name())) // error ignored: the next program that calls Guard tries again
			default:
				os.RemoveAll(filepath.Join(dir, e.Name()))
			}
		}
	}
}

// guardEnv is the environment variable that makes a process the guard of a program. Its value
// is the program's process id.
const guardEnv = "WEFT_LAB_GUARD"

// The guard is a second process of the same program. It waits until the program has ended, and
// removes what the program has left. go test kills a test after its time limit, and then
// neither deferred functions nor TestMain run.
func init() {
	if program, err := strconv.Atoi(os.Getenv(guardEnv)); err == nil {
		_, _ = io.Copy(io.Discard, os.Stdin) // reads until the program ends, because only the program has the pipe's writing end
		sweepOf(func(_ string, pid int) bool { return pid == program })
		os.Exit(0)
	}
}

// startGuard starts the guard. If it fails, the next program that makes a lab removes what this
// one leaves.
func startGuard() {
	self, err := os.Executable()
	if err != nil {
		return
	}
	var ends [2]int // the writing end stays open until this program ends
	if syscall.Pipe2(ends[:], syscall.O_CLOEXEC) != nil {
		return
	}
	input := os.NewFile(uintptr(ends[0]), "guard")
	defer input.Close()
	guard := exec.Command(self)
	guard.Stdin = input
	guard.Env = append(os.Environ(), fmt.Sprint(guardEnv, "=", os.Getpid()))
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals to the program's process group must not end the guard
	_ = guard.Start()
}

// GroupRoot returns the directory where version 2 cgroups are mounted, or "" if none is.
func GroupRoot() string {
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	return ""
}

// groupLimit is the time that RemoveGroup waits for the end of killed processes.
const groupLimit = 2 * time.Minute

// RemoveGroup kills the processes in a cgroup, and removes the cgroup with the cgroups inside
// it.
func RemoveGroup(dir string) (err error) {
	// Before Linux 5.14 the file does not exist, and the processes must end by themselves.
	_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	for end := time.Now().Add(groupLimit); ; time.Sleep(50 * time.Millisecond) {
		var groups []string
		_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		if len(groups) == 0 {
			return nil
		}
		for _, group := range slices.Backward(groups) { // the innermost first
			err = syscall.Rmdir(group)
		}
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// removeNamespace kills the processes in a network namespace and deletes the namespace.
// It tries again if a process, such as weftd, has started another one meanwhile.
func removeNamespace(ns string) {
	for range 10 {
		pids := namespacePIDs(ns)
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
	exec.Command("ip", "netns", "delete", ns).Run()
}

// namespacePIDs returns the processes in a network namespace. It leaves out this
// process, which may have a thread there.
func namespacePIDs(ns string) []int {
	out, _ := exec.Command("ip", "netns", "pids", ns).Output()
	var pids []int
	for _, word := range strings.Fields(string(out)) {
		if pid, err := strconv.Atoi(word); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
