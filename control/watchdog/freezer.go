// SPDX-License-Identifier: Apache-2.0

package watchdog

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// cgroups is the directory at which systemd mounts control groups. Version 2 is mounted there or in
// the folder "unified", each controller of version 1 in a folder of its name.
const cgroups = "/sys/fs/cgroup"

// frozen reports whether the control group of a process is frozen, so that its threads stand still. A
// frozen thread shows state S with version 2, and state D with version 1.
func frozen(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && frozenGroup(string(text), cgroups)
}

// frozenGroup reports whether one of a process's control groups is frozen. text is the contents of
// /proc/PID/cgroup. mounts is the directory in which control groups are mounted, as cgroups is.
func frozenGroup(text, mounts string) bool {
	for line := range strings.Lines(text) {
		number, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		switch {
		case number == "0":
			if containsLine(filepath.Join(mounts, group, "cgroup.events"), "frozen 1") ||
				containsLine(filepath.Join(mounts, "unified", group, "cgroup.events"), "frozen 1") {
				return true
			}
		case controllers == "freezer":
			if containsLine(filepath.Join(mounts, "freezer", group, "freezer.state"), "FROZEN") {
				return true
			}
		}
	}
	return false
}

// containsLine reports whether a file has this line.
func containsLine(path, line string) bool {
	text, err := os.ReadFile(path)
	return err == nil && slices.Contains(strings.Split(string(text), "\n"), line)
}
