// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"weft/cmd/exit"
	"weft/control/access"
	"weft/internal/privilege"
	"weft/internal/safepath"
)

// noCapability is the value of --capabilities for an empty list.
const noCapability = "none"

// becomeUser makes this process run as the user of --user with the capabilities of --capabilities.
// Before that it does what only root can: it makes the directories and raises resource limits. It does
// nothing without --user, or if the process runs as this user already.
func (s *settings) becomeUser() error {
	if s.User == "" {
		return nil
	}
	account, err := privilege.Lookup(s.User)
	if err != nil {
		return exit.Usagef("%v", err)
	}
	switch {
	case account.UID == 0:
		return exit.Usagef("user %s: expected another user than root", s.User)
	case os.Geteuid() == account.UID:
		return nil
	case os.Geteuid() != 0:
		return exit.Usagef("user %s: only root can change the user; expected to be started as root, or as %s", s.User, s.User)
	}
	if err := giveState(s.State, account); err != nil {
		return fmt.Errorf("state directory %s: %w", s.State, err)
	}
	if err := giveNewDir(filepath.Dir(s.Socket), account); err != nil {
		return fmt.Errorf("directory of socket %s: %w", s.Socket, err)
	}
	_, _ = access.RaiseDescriptors() // error ignored: control tries again, and logs it
	keep, _ := s.keptCapabilities()  // cannot fail: config has checked it
	return privilege.Become(account, keep)
}

// keptCapabilities returns the capabilities that --capabilities names. The default is all that ports
// need, as far as this process has them.
func (s *settings) keptCapabilities() ([]cap.Value, error) {
	switch s.Capabilities {
	case "":
		return slices.DeleteFunc(privilege.All(), func(c cap.Value) bool { return !privilege.Has(c) }), nil
	case noCapability:
		return nil, nil
	}
	return privilege.Parse(s.Capabilities)
}

// giveState makes the state directory and changes its owner, and that of its files, to an account. The
// owner of the directory itself is changed last, so that an interrupted call starts over. If the
// account owns the directory already, giveState changes nothing: the account may have made links to
// files of others in it.
func giveState(path string, a *privilege.Account) error {
	dir, err := safepath.Dir(path, 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	switch {
	case int(st.Uid) == a.UID:
		return nil
	case st.Uid != 0 || st.Mode&0o022 != 0:
		return fmt.Errorf("others may change it (owner uid %d, mode %04o): chown -R it to %s, mode 0700", st.Uid, st.Mode&0o7777, a.Name)
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		return root.Lchown(name, a.UID, a.GID)
	})
	if err != nil {
		return err
	}
	return unix.Fchown(int(dir.Fd()), a.UID, a.GID)
}

// giveNewDir makes a directory that belongs to an account, unless the directory exists.
func giveNewDir(path string, a *privilege.Account) error {
	if _, err := os.Lstat(path); err == nil {
		return nil
	}
	dir, err := safepath.Dir(path, 0o755)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Fchown(int(dir.Fd()), a.UID, a.GID)
}
