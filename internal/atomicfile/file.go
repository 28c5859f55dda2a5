// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces whole files. A reader sees either the old contents or the
// new ones, also after a crash of the machine.
package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Write replaces a file. The function write writes the new contents. If write or the
// disk fails, the old file stays, and Write leaves no other file behind.
func Write(file string, mode os.FileMode, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // error ignored: usually renamed already
	err = write(f)
	if err == nil {
		err = errors.Join(f.Chmod(mode), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// WriteBytes replaces a file by data.
func WriteBytes(file string, mode os.FileMode, data []byte) error {
	return Write(file, mode, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}
