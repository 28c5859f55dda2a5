// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"reflect"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"weft/control"
	"weft/internal/logs"
)

// untilSignal returns a context that ends at SIGTERM or SIGINT. SIGTERM, which systemd sends, leaves
// the engine running for the next control process. SIGINT, from Ctrl-C in a terminal, also ends the
// engine, because perhaps nobody starts weftd again. SIGHUP calls reload.
func untilSignal(reload func()) (ctx context.Context, stop func()) {
	ctx, end := context.WithCancelCause(context.Background())
	got := make(chan os.Signal, 8)
	signal.Notify(got, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	go func() {
		for s := range got {
			switch s {
			case unix.SIGHUP:
				reload()
			case unix.SIGINT:
				end(control.ErrShutDown)
			default:
				end(nil)
			}
		}
	}()
	return ctx, func() { signal.Stop(got); end(nil) }
}

// reloader reads the configuration file again at SIGHUP. One goroutine uses it.
type reloader struct {
	read     func() (*settings, error) // reads the settings from flags and file
	running  *settings                 // settings of this process
	settings *logs.Log
	log      *slog.Logger
}

// reload applies the log level and the log format of the configuration file. It logs the names of other
// changed settings, which take effect at the next start. If the file is wrong, nothing changes.
func (r *reloader) reload() {
	notifyReloading(r.log)
	defer notify(r.log, daemon.SdNotifyReady)
	next, err := r.read()
	if err == nil {
		_, err = next.config()
	}
	if err != nil {
		r.log.Error("the configuration is not changed", "error", err)
		return
	}
	_ = r.settings.Set(next.LogLevel, next.LogFormat) // cannot fail: config has checked both
	r.running.LogLevel, r.running.LogFormat = next.LogLevel, next.LogFormat
	var later []string
	was, is := reflect.ValueOf(r.running).Elem(), reflect.ValueOf(next).Elem()
	for i, name := range settingNames() {
		if was.Field(i).Interface() != is.Field(i).Interface() {
			later = append(later, name)
		}
	}
	r.log.Info("configuration reread", "log-level", next.LogLevel, "log-format", next.LogFormat, "at_next_start", later)
}
