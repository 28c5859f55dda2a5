// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"

	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// etcd cannot go on after a failed write to its files. It logs a fatal error, and the logger
// ends the process.

// fatalHook tells etcd's logger how to end the process after a fatal error of etcd.
type fatalHook struct {
	// diskFull is called if the disk was full. It does not return. nil: the process ends.
	diskFull func()
}

// OnWrite implements zapcore.CheckWriteHook. The logger calls it after it has written the fatal error.
func (h fatalHook) OnWrite(_ *zapcore.CheckedEntry, fields []zapcore.Field) {
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && h.diskFull != nil && IsDiskFull(err) {
			h.diskFull()
		}
	}
	os.Exit(1)
}

// IsDiskFull reports whether an operation has failed because the disk, or the user's share of
// it, is full.
func IsDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
