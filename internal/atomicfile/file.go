// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces whole files. A reader sees either the old contents or the
// new ones, also after a crash of the machine.
package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Write replaces a file by one with the contents that the function write produces. If write or the
// disk fails, the old file stays, and Write leaves no temporary file behind.
func Write(file string, mode os.FileMode, write func(io.Writer) error) error {
	return replace(file, mode, write, func(*os.File) error { return nil })
}

// replace does the work of Write. It calls prepare with the new file before the file gets its mode and
// its final name.
func replace(file string, mode os.FileMode, write func(io.Writer) error, prepare func(*os.File) error) error {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // error ignored: usually renamed already
	err = write(f)
	if err == nil {
		err = errors.Join(prepare(f), f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// WriteBytes replaces a file by one with the contents data.
func WriteBytes(file string, mode os.FileMode, data []byte) error {
	return Write(file, mode, bytesWriter(data))
}

// WriteForOwner does the same as WriteBytes. But if root calls it, the new file belongs to the owner of its
// directory. A daemon that runs as this owner can then read a file that root has written.
func WriteForOwner(file string, mode os.FileMode, data []byte) error {
	return replace(file, mode, bytesWriter(data), func(f *os.File) error {
		var dir unix.Stat_t
		if err := unix.Stat(filepath.Dir(file), &dir); err != nil || os.Geteuid() != 0 || dir.Uid == 0 {
			return err
		}
		return f.Chown(int(dir.Uid), int(dir.Gid))
	})
}

func bytesWriter(data []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	}
}
