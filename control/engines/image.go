// SPDX-License-Identifier: Apache-2.0

package engines

import "os"

// ownImage is the path of this process's program. It works even if the program's file was replaced or
// removed.
const ownImage = "/proc/self/exe"

// image is the program file of engines. An engine must be of the same build as the control process,
// because they share memory. An upgrade replaces the file while the control process still runs.
type image struct {
	file string
	info os.FileInfo // state of the file when control started; nil: unknown
}

func newImage(file string) image {
	was, _ := os.Stat(file) // if the file is missing, the start of an engine reports it
	return image{file, was}
}

// path returns the path of the program to execute: the file, or ownImage if an upgrade has replaced the
// file since this process started.
func (m image) path() string {
	now, err := os.Stat(m.file)
	if m.info == nil || err == nil && os.SameFile(m.info, now) {
		return m.file
	}
	own, err := os.Stat(ownImage)
	if err != nil || !os.SameFile(m.info, own) {
		return m.file
	}
	return ownImage
}
