// SPDX-License-Identifier: Apache-2.0

package logs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"path"
	"runtime"
	"strings"
	"sync"
)

// ovsHandler writes lines in the format of Open vSwitch's log (vlog, pattern %D|%05N|%c|%p|%m), for
// programs that search such logs for WARN, ERR and EMER:
//
//	2023-01-01T00:00:00.000Z|00001|ovsdb|WARN|a row cannot be done interface=eth9
//
// The third field is the name of the Go package that logs.
type ovsHandler struct {
	attributes slog.Handler // writes key=value into line.attributes
	line       *ovsLine
}

// ovsLine is the part of the handler that all handlers of one log share: the output, its lock and the
// number of the last line.
type ovsLine struct {
	mu         sync.Mutex
	out        io.Writer
	number     uint64
	attributes bytes.Buffer
}

func newOVSHandler(w io.Writer, options *slog.HandlerOptions) slog.Handler {
	l := &ovsLine{out: w}
	withoutHead := func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && (a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
			return slog.Attr{}
		}
		return a
	}
	return &ovsHandler{slog.NewTextHandler(&l.attributes, &slog.HandlerOptions{Level: options.Level, ReplaceAttr: withoutHead}), l}
}

func (h *ovsHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.attributes.Enabled(ctx, level)
}

func (h *ovsHandler) Handle(ctx context.Context, r slog.Record) error {
	at := r.Time.UTC().Format("2006-01-02T15:04:05.000Z")
	l := h.line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	l.attributes.Reset()
	if err := h.attributes.Handle(ctx, withoutTime(r)); err != nil {
		return err
	}
	line := fmt.Sprintf("%s|%05d|%s|%s|%s %s", at, l.number, module(r.PC), ovsLevel(r.Level), r.Message, l.attributes.Bytes())
	_, err := io.WriteString(l.out, strings.TrimRight(line, " \n")+"\n")
	return err
}

// withoutTime returns a copy of the record with time 0, so that a handler does not write a time.
func withoutTime(r slog.Record) slog.Record {
	bare := slog.Record{Level: r.Level, Message: r.Message}
	r.Attrs(func(a slog.Attr) bool {
		bare.AddAttrs(a)
		return true
	})
	return bare
}

// module returns the name of the package whose code is at pc, for the log.
func module(pc uintptr) string {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	name, _, _ := strings.Cut(path.Base(frame.Function), ".")
	return name
}

func ovsLevel(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "ERR"
	case l >= slog.LevelWarn:
		return "WARN"
	case l >= slog.LevelInfo:
		return "INFO"
	}
	return "DBG"
}

func (h *ovsHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &ovsHandler{h.attributes.WithAttrs(attrs), h.line}
}

func (h *ovsHandler) WithGroup(name string) slog.Handler {
	return &ovsHandler{h.attributes.WithGroup(name), h.line}
}
