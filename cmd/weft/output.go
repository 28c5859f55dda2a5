// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// output is where a command writes its results. It keeps the first write error, and the command then
// fails with it. So weft does not report success if, for example, the disk is full.
type output struct {
	io.Writer
	err error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

func file(w io.Writer) *os.File {
	if o, ok := w.(*output); ok {
		w = o.Writer
	}
	f, _ := w.(*os.File)
	return f
}

func isTerminal(w io.Writer) bool {
	f := file(w)
	if f == nil {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// unlimited is the width and height in characters that terminalSize returns if the output is no
// terminal.
const unlimited = 1 << 20

// terminalSize returns the size of the terminal out in characters, or 80 by 24 if the terminal does not
// report its size. It returns unlimited if out is no terminal.
func terminalSize(out io.Writer) (width, height int) {
	if !isTerminal(out) {
		return unlimited, unlimited
	}
	ws, err := unix.IoctlGetWinsize(int(file(out).Fd()), unix.TIOCGWINSZ)
	if err != nil || ws.Col == 0 || ws.Row == 0 {
		return 80, 24
	}
	return int(ws.Col), int(ws.Row)
}
