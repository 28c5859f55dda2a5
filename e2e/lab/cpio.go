// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"io"
	"path"
	"strings"
)

// cpioWriter writes an initramfs, Linux's first root file system, in the format "newc".
// Each entry has a header of hexadecimal fields, a name and data, padded to 4 bytes
// (Documentation/driver-api/early-userspace/buffer-format.rst). Close returns the first
// error.
type cpioWriter struct {
	w      io.Writer
	offset int
	ino    int
	err    error
	dirs   map[string]bool
}

const (
	cpioDir     = 0o040755
	cpioExec    = 0o100755
	cpioSymlink = 0o120777
	cpioEnd     = "TRAILER!!!"
)

func newCpioWriter(w io.Writer) *cpioWriter {
	return &cpioWriter{w: w, dirs: map[string]bool{".": true, "/": true}}
}

// File adds an executable file, and its parent directories if missing.
func (c *cpioWriter) File(name string, data []byte) { c.add(name, cpioExec, data) }

// Symlink adds a symbolic link with the path "name" that points to target.
func (c *cpioWriter) Symlink(name, target string) { c.add(name, cpioSymlink, []byte(target)) }

// Dir adds a directory, and its parent directories if missing.
func (c *cpioWriter) Dir(name string) {
	name = path.Clean(strings.TrimPrefix(name, "/"))
	if c.dirs[name] {
		return
	}
	c.dirs[name] = true
	c.Dir(path.Dir(name))
	c.entry(name, cpioDir, nil)
}

// Close ends the archive.
func (c *cpioWriter) Close() error {
	c.entry(cpioEnd, 0, nil)
	return c.err
}

func (c *cpioWriter) add(name string, mode int, data []byte) {
	name = strings.TrimPrefix(name, "/")
	c.Dir(path.Dir(name))
	c.entry(name, mode, data)
}

func (c *cpioWriter) entry(name string, mode int, data []byte) {
	c.ino++
	// header: magic number, then 8 digits each: ino, mode, uid, gid, nlink, mtime,
	// filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
	c.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.ino, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0))
	c.write(append([]byte(name), 0))
	c.pad()
	c.write(data)
	c.pad()
}

func (c *cpioWriter) write(data []byte) {
	if c.err == nil {
		_, c.err = c.w.Write(data)
	}
	c.offset += len(data)
}

func (c *cpioWriter) pad() { c.write(make([]byte, -c.offset&3)) }
