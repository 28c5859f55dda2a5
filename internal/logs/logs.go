// SPDX-License-Identifier: Apache-2.0

// Package logs makes a log whose level and format can change while loggers use it.
package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
)

// Formats of a log.
const (
	Text = "text" // key=value
	JSON = "json" // one object a line
	OVS  = "ovs"  // as Open vSwitch: time|number|package|LEVEL|message key=value
)

// formats are the values of the setting log-format.
var formats = []string{Text, JSON, OVS}

// Log has the settings of a log. Several goroutines may use it.
type Log struct {
	level  slog.LevelVar
	format atomic.Int32 // index in formats
}

// New returns a logger that writes to w, and its settings: level info, format text.
func New(w io.Writer) (*slog.Logger, *Log) {
	l := &Log{}
	options := &slog.HandlerOptions{Level: &l.level}
	return slog.New(&handler{l, []slog.Handler{slog.NewTextHandler(w, options), slog.NewJSONHandler(w, options), newOVSHandler(w, options)}}), l
}

// Level returns the least severe level that is logged, as a word.
func (l *Log) Level() string { return strings.ToLower(l.level.Level().String()) }

// Format returns the format in use: text, json or ovs.
func (l *Log) Format() string { return formats[l.format.Load()] }

// Set changes level and format; "" leaves one as it is. After an error both are as before.
func (l *Log) Set(level, format string) error {
	next := l.level.Level()
	if level != "" {
		var err error
		if next, err = ParseLevel(level); err != nil {
			return err
		}
	}
	if err := CheckFormat(format); err != nil {
		return err
	}
	l.level.Set(next)
	if format != "" {
		l.format.Store(int32(slices.Index(formats, format)))
	}
	return nil
}

// ParseLevel parses debug, info, warn or error.
func ParseLevel(word string) (slog.Level, error) {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(word, level.String()) {
			return level, nil
		}
	}
	return 0, fmt.Errorf("%s: expected debug, info, warn or error", word)
}

// CheckFormat refuses a word that is neither a format nor "".
func CheckFormat(word string) error {
	if word != "" && !slices.Contains(formats, word) {
		return fmt.Errorf("%s: expected text, json or ovs", word)
	}
	return nil
}

// handler passes each record to the handler of the present format. The handlers of all formats get the
// same attributes.
type handler struct {
	log     *Log
	formats []slog.Handler // in the order of formats
}

func (h *handler) now() slog.Handler { return h.formats[h.log.format.Load()] }

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.now().Enabled(ctx, level)
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error { return h.now().Handle(ctx, r) }

func (h *handler) derive(derived func(slog.Handler) slog.Handler) slog.Handler {
	next := &handler{log: h.log}
	for _, f := range h.formats {
		next.formats = append(next.formats, derived(f))
	}
	return next
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return h.derive(func(f slog.Handler) slog.Handler { return f.WithAttrs(attrs) })
}

func (h *handler) WithGroup(name string) slog.Handler {
	return h.derive(func(f slog.Handler) slog.Handler { return f.WithGroup(name) })
}
