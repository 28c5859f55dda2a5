// SPDX-License-Identifier: Apache-2.0

// Package safepath opens directories and files by paths that less privileged users may
// change. weftd runs as root, so a symbolic link of such a user could redirect its
// writes to a place where the user may not write.
//
// A directory is trusted if it belongs to root or to the user of this process, and only
// these two and group 0 may write to it. Links in a trusted directory are followed. If
// a directory of root or of this user has the sticky bit, such as /tmp, a link in it is
// followed if the link itself belongs to root or to this user.
package safepath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the largest number of links in a path. The kernel has the same limit.
const maxLinks = 40

// A LinkError reports a link that is not followed: another user may have made it.
type LinkError struct{ Link, Dir string }

func (e *LinkError) Error() string {
	return fmt.Sprintf("%s is a symbolic link, and others than root may change %s: it is not followed", e.Link, e.Dir)
}

// trusted reports whether only root, group 0 and this user may change the entries of a
// directory.
func trusted(st *unix.Stat_t) bool {
	return ours(st) && st.Mode&0o002 == 0 && (st.Mode&0o020 == 0 || st.Gid == 0)
}

func ours(st *unix.Stat_t) bool { return st.Uid == 0 || int(st.Uid) == os.Geteuid() }

// mayFollow reports whether the walk may follow a link in directory dir.
func mayFollow(dir, link *unix.Stat_t) bool {
	return trusted(dir) || ours(dir) && dir.Mode&unix.S_ISVTX != 0 && ours(link)
}

// walk is the state of following a path from the root directory.
type walk struct {
	fd    int    // O_PATH descriptor of the present directory
	name  string // path of the present directory
	links int    // number of links followed
}

// Dir opens a directory. If mode is not 0, it makes the missing directories: the last
// one with mode, and those above it with 0755, so that other users can pass through
// them. The caller closes the file. The error is a *LinkError or that of a system call.
func Dir(path string, mode uint32) (*os.File, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	w := walk{fd: unix.AT_FDCWD}
	if err := w.enter("/"); err != nil {
		return nil, err
	}
	defer func() { unix.Close(w.fd) }()
	if err := w.follow(strings.Split(abs, "/"), mode); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(w.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// enter opens the directory name in the present directory, and makes it the present
// directory. It fails if name is a link.
func (w *walk) enter(name string) error {
	fd, err := unix.Openat(w.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Join(w.name, name), Err: err}
	}
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
	w.fd, w.name = fd, filepath.Join(w.name, name)
	return nil
}

// follow enters the directories of a path, whose names are given in order. It follows
// a link if mayFollow allows it, and otherwise returns a *LinkError. If mode is not 0,
// it makes missing directories, as Dir says.
func (w *walk) follow(names []string, mode uint32) error {
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		if name == "" || name == "." {
			continue
		}
		target, err := w.linkAt(name)
		switch {
		case err == unix.ENOENT && mode != 0:
			own := uint32(0o755)
			if strings.Join(names, "") == "" {
				own = mode
			}
			if err := unix.Mkdirat(w.fd, name, own); err != nil && err != unix.EEXIST {
				return &os.PathError{Op: "mkdir", Path: filepath.Join(w.name, name), Err: err}
			}
			if err := w.enter(name); err != nil {
				return err
			}
			continue
		case err == unix.ENOENT:
			return &os.PathError{Op: "open", Path: filepath.Join(w.name, name), Err: err}
		case err != nil:
			return err
		case target == "":
			if err := w.enter(name); err != nil {
				return err
			}
			continue
		}
		if w.links++; w.links > maxLinks {
			return &os.PathError{Op: "open", Path: filepath.Join(w.name, name), Err: unix.ELOOP}
		}
		if filepath.IsAbs(target) {
			if err := w.enter("/"); err != nil {
				return err
			}
			w.name = "/"
		}
		names = append(strings.Split(target, "/"), names...)
	}
	return nil
}

// linkAt returns the target of the link name in the present directory, or "" if name is
// no link. It returns a *LinkError if mayFollow does not allow the link.
func (w *walk) linkAt(name string) (target string, err error) {
	var dir, st unix.Stat_t
	if err := unix.Fstatat(w.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		if err == unix.ENOENT {
			return "", err
		}
		return "", &os.PathError{Op: "stat", Path: filepath.Join(w.name, name), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", nil
	}
	if err := unix.Fstat(w.fd, &dir); err != nil {
		return "", err
	}
	if !mayFollow(&dir, &st) {
		return "", &LinkError{Link: filepath.Join(w.name, name), Dir: w.name}
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(w.fd, name, buf)
	return string(buf[:max(n, 0)]), err
}

// Private opens a directory for this process only. It makes missing directories as Dir
// does, and refuses a directory that other users may change.
func Private(path string) (*os.File, error) {
	f, err := Dir(path, 0o700)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, err
	}
	if !trusted(&st) {
		f.Close()
		return nil, fmt.Errorf("others may change it (owner uid %d, mode %04o); take it to root, mode 0700", st.Uid, st.Mode&0o7777)
	}
	return f, nil
}

// OpenFile opens a file as os.OpenFile does. It returns an error if the file, or a
// directory of its path, is a link that another user may have made.
func OpenFile(path string, flags int, mode uint32) (*os.File, error) {
	dir, err := Dir(filepath.Dir(path), 0)
	if errors.Is(err, unix.ENOENT) {
		err = &os.PathError{Op: "open", Path: path, Err: unix.ENOENT} // same error as os.OpenFile's
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	w := walk{fd: int(dir.Fd()), name: filepath.Dir(path)}
	target, err := w.linkAt(filepath.Base(path))
	if err != nil && err != unix.ENOENT {
		return nil, err
	}
	if target == "" { // no link, or no file: a link that appears only now is refused
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Openat(w.fd, filepath.Base(path), flags|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
