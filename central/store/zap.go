// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// slogCore passes messages of etcd to the daemon's log: warnings as debug messages, errors as warnings,
// and more severe messages as errors.
type slogCore struct {
	log    *slog.Logger
	fields []zapcore.Field
}

var levels = map[zapcore.Level]slog.Level{zapcore.WarnLevel: slog.LevelDebug, zapcore.ErrorLevel: slog.LevelWarn}

func (c *slogCore) Enabled(l zapcore.Level) bool {
	return c.log != nil && l >= zapcore.WarnLevel && c.log.Enabled(context.Background(), level(l))
}

func level(l zapcore.Level) slog.Level {
	if s, ok := levels[l]; ok {
		return s
	}
	return slog.LevelError
}

func (c *slogCore) With(fields []zapcore.Field) zapcore.Core {
	return &slogCore{c.log, append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c *slogCore) Check(e zapcore.Entry, entry *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return entry.AddCore(e, c)
	}
	return entry
}

func (c *slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	objects := zapcore.NewMapObjectEncoder()
	for _, f := range append(c.fields[:len(c.fields):len(c.fields)], fields...) {
		f.AddTo(objects)
	}
	attrs := []any{}
	for k, v := range objects.Fields {
		attrs = append(attrs, k, v)
	}
	c.log.Log(context.Background(), level(e.Level), "etcd: "+e.Message, attrs...)
	return nil
}

func (c *slogCore) Sync() error { return nil }
