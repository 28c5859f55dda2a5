// SPDX-License-Identifier: Apache-2.0

// Package safepath opens directories and files on paths that less privileged users may
// change. weftd may run as root, and another user's symbolic link could redirect its
// writes.
//
// A directory is trusted if it belongs to root or to the user of this process, and only
// these two and group 0 may write to it. safepath follows symbolic links in trusted
// directories. A sticky directory of root or of this user, such as /tmp, is not
// trusted. There safepath follows a link only if root or this user owns the link.
package safepath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the largest number of symbolic links that safepath follows on a path. The
// kernel has the same limit.
const maxLinks = 40

// linkError is the error for a symbolic link that a user other than root may have created.
type linkError struct{ Link, Dir string }

func (e *linkError) Error() string {
	return fmt.Sprintf("%s is a symbolic link in %s, which others than root may change: name the path behind the link, or make root the owner of the directory", e.Link, e.Dir)
}

// trusted reports whether only root, group 0 and this user may change a directory with
// the status st.
func trusted(st *unix.Stat_t) bool {
	return ours(st) && st.Mode&0o002 == 0 && (st.Mode&0o020 == 0 || st.Gid == 0)
}

func ours(st *unix.Stat_t) bool { return st.Uid == 0 || int(st.Uid) == os.Geteuid() }

// mayFollow reports whether safepath may follow the symbolic link "link" in the directory dir, given
// their status.
func mayFollow(dir, link *unix.Stat_t) bool {
	return trusted(dir) || ours(dir) && dir.Mode&unix.S_ISVTX != 0 && ours(link)
}

// walk follows a path from the root directory, one directory after the other.
type walk struct {
	fd    int    // O_PATH descriptor of the current directory
	name  string // path of the current directory
	links int    // number of links followed
}

// Dir opens a directory. If mode is not 0, it creates missing directories: the last one
// with this mode, its parents with 0755. The caller closes the returned file. The error
// is a *linkError or comes from a system call.
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

// enter enters a directory in the current directory. It fails for a symbolic link.
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

// follow enters the directories in the list names one after the other. It returns a *linkError for a
// symbolic link that it must not follow (see mayFollow). If mode is not 0, it creates missing
// directories: the last one with this mode.
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

// linkAt returns the target of the symbolic link called name in the current directory; "": name is no
// link. It returns a *linkError if mayFollow forbids to follow the link.
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
		return "", &linkError{Link: filepath.Join(w.name, name), Dir: w.name}
	}
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(w.fd, name, buf)
	return string(buf[:max(n, 0)]), err
}

// Private opens a directory, and creates it if it is missing. It returns an error if others than root
// and this user may change the directory.
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
		return nil, fmt.Errorf("others may change it (owner uid %d, mode %04o): chown -R it to uid %d, mode 0700, or start weftd as its owner (--user)",
			st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	return f, nil
}

// OpenFile does the same as os.OpenFile, but follows no symbolic links that another user may have
// created.
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
	if target == "" { // no link now; a later link is refused
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Openat(w.fd, filepath.Base(path), flags|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
