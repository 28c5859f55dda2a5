// SPDX-License-Identifier: Apache-2.0

package privilege

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"
)

// Account is a user of the machine. Become makes this process run as this user.
type Account struct {
	Name     string
	UID, GID int
	Groups   []int // supplementary groups
}

// Lookup returns the account of a user, given by name or by number.
func Lookup(name string) (*Account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		return nil, fmt.Errorf("user %s: no such user", name)
	}
	a := &Account{Name: u.Username}
	a.UID, err = strconv.Atoi(u.Uid)
	if err == nil {
		a.GID, err = strconv.Atoi(u.Gid)
	}
	groups, listErr := u.GroupIds()
	if err = errors.Join(err, listErr); err != nil {
		return nil, fmt.Errorf("user %s: %w", name, err)
	}
	for _, text := range groups {
		if n, err := strconv.Atoi(text); err == nil {
			a.Groups = append(a.Groups, n)
		}
	}
	return a, nil
}

// Become makes all threads of this process run as the user a, with only the capabilities in keep. The
// change cannot be undone. Programs that the process starts get the same capabilities, because these
// are ambient. Become first removes the limit of locked memory, if it may. The process must have
// CAP_SETUID, CAP_SETGID and CAP_SETPCAP.
func Become(a *Account, keep []cap.Value) error {
	held := cap.GetProc()
	for _, c := range keep {
		if has, err := held.GetFlag(cap.Permitted, c); err != nil || !has {
			return fmt.Errorf("user %s: weftd has no %s to keep", a.Name, Name(c))
		}
	}
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: math.MaxUint64, Max: math.MaxUint64}) // error ignored: with CAP_IPC_LOCK the limit has no effect
	for c := cap.Value(0); c < cap.MaxBits(); c++ {
		if slices.Contains(keep, c) {
			continue
		}
		if err := cap.DropBound(c); err != nil {
			return fmt.Errorf("user %s: bounding set: %w", a.Name, err)
		}
	}
	if err := cap.SetGroups(a.GID, a.Groups...); err != nil {
		return fmt.Errorf("user %s: groups: %w", a.Name, err)
	}
	if err := cap.SetUID(a.UID); err != nil {
		return fmt.Errorf("user %s: %w", a.Name, err)
	}
	set := cap.NewSet()
	for _, vector := range []cap.Flag{cap.Permitted, cap.Effective, cap.Inheritable} {
		if err := set.SetFlag(vector, true, keep...); err != nil {
			return fmt.Errorf("user %s: capabilities: %w", a.Name, err)
		}
	}
	if err := set.SetProc(); err != nil {
		return fmt.Errorf("user %s: capabilities: %w", a.Name, err)
	}
	if len(keep) > 0 {
		if err := cap.SetAmbient(true, keep...); err != nil {
			return fmt.Errorf("user %s: ambient capabilities: %w", a.Name, err)
		}
	}
	if _, err := cap.Prctlw(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("user %s: no_new_privs: %w", a.Name, err)
	}
	return nil
}

// Member reports whether this process is in the group, so that it may give its files to the group
// without CAP_CHOWN.
func Member(gid int) bool {
	groups, err := os.Getgroups()
	return gid == os.Getegid() || err == nil && slices.Contains(groups, gid)
}
