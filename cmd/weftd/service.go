// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"weft/api"
)

// notify sends a state of sd_notify(3) to systemd. It does nothing if systemd has not started this
// process.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("systemd cannot be notified", "state", state, "error", err)
	}
}

// serviceStatus reports to systemd how far the start of weftd is. One goroutine uses it.
type serviceStatus struct {
	log      *slog.Logger
	watchdog func() // starts to serve systemd's watchdog
	serving  bool
}

// delayed tells systemd that the service has started, and what it still waits for. The API answers
// already. If the service did not count as started, a package upgrade would wait.
func (s *serviceStatus) delayed(reason string) { s.notify(reason) }

func (s *serviceStatus) ready() { s.notify("") }

func (s *serviceStatus) notify(status string) {
	notify(s.log, daemon.SdNotifyReady+"\nSTATUS="+status)
	if !s.serving {
		s.serving = true
		s.watchdog()
	}
}

// notifyReloading tells systemd that a reload begins. The caller reports its end with READY=1.
func notifyReloading(log *slog.Logger) {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // fails for an unknown clock only
	notify(log, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}

// keepWatchdog notifies systemd's watchdog regularly as long as the API answers. An error response
// counts as an answer, because the control process refuses requests while it replaces an engine.
func keepWatchdog(socket string, log *slog.Logger) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil || limit == 0 {
		return
	}
	client, err := api.NewClient(socket)
	if err != nil {
		log.Warn("systemd's watchdog is not served", "error", err)
		return
	}
	for range time.Tick(limit / 3) {
		_, err := client.Show()
		var refused *api.Refused
		if err == nil || errors.As(err, &refused) {
			notify(log, daemon.SdNotifyWatchdog)
		}
	}
}
