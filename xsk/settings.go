// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"
)

// This file changes settings of a device for an uplink. Close restores the old values. If the control process
// and the engine process are both killed, the changed values stay.

// setting is a setting of the device that Setup has changed, with its old value.
type setting struct {
	// Name is "channels", "rss", or the name of a file below /sys/class/net/DEV.
	Name string   `json:"name"`
	Was  []uint32 `json:"was"` // old value: numbers of rx, tx and combined channels; the RSS table; or the number in the file
}

const (
	settingChannels = "channels"
	settingRSS      = "rss"
	// Busy polling turns the device's interrupts off. They come back after deferPolls polls without
	// frames, or after flushTimeoutNS (Documentation/networking/napi.rst, "Software IRQ coalescing").
	// The settings have these names.
	settingDefer   = "napi_defer_hard_irqs"
	settingTimeout = "gro_flush_timeout" // time in ns
	deferPolls     = 2
	flushTimeoutNS = 200_000
)

// changeSettings changes the device's channels and interrupt settings as cfg asks. It runs before
// Setup counts the device's queues.
func (u *Uplink) changeSettings(cfg *Config) error {
	if cfg.Channels > 0 {
		if err := u.setChannels(cfg.Channels); err != nil {
			return err
		}
	}
	if cfg.BusyPoll > 0 {
		for name, value := range map[string]uint32{settingDefer: deferPolls, settingTimeout: flushTimeoutNS} {
			was, err := swapFile(cfg.Dev, name, value)
			if err != nil {
				return fmt.Errorf("af_xdp on %s: busy polling needs to write /sys/class/net/%s/%s: %w (do so yourself, or leave busy_poll= out)",
					cfg.Dev, cfg.Dev, name, errnoOf(err))
			}
			u.settings = append(u.settings, setting{name, []uint32{was}})
		}
	}
	return nil
}

func (u *Uplink) setChannels(n int) error {
	dev := u.spec.Dev
	return withEthtool(func(tool *ethtool.Ethtool) error {
		now, err := tool.GetChannels(dev)
		if err != nil {
			return fmt.Errorf("af_xdp on %s: channels=%d: driver %s does not report its number of queues (%w): leave channels= out", dev, n, u.driver, err)
		}
		want, most := now, max(now.MaxCombined, min(now.MaxRx, now.MaxTx))
		if now.MaxCombined > 0 {
			want.CombinedCount, want.RxCount, want.TxCount = uint32(n), 0, 0
		} else {
			want.RxCount, want.TxCount = uint32(n), uint32(n)
		}
		if uint32(n) > most {
			return fmt.Errorf("af_xdp on %s: channels=%d: the device has at most %d queues", dev, n, most)
		}
		if want == now {
			return nil
		}
		if _, err := tool.SetChannels(dev, want); err != nil {
			return fmt.Errorf("af_xdp on %s: channels=%d: driver %s refused (%w): ethtool -L %s shows the reason", dev, n, u.driver, err, dev)
		}
		u.settings = append(u.settings, setting{settingChannels, []uint32{now.RxCount, now.TxCount, now.CombinedCount}})
		return nil
	})
}

// steer changes the NIC's RSS table so that no traffic goes to queues that the uplink does not serve.
func (u *Uplink) steer() error {
	dev, served := u.spec.Dev, u.spec.Queues
	if served == u.deviceQueues {
		return nil
	}
	was, err := getIndirection(dev)
	if err == nil {
		table := make([]uint32, len(was))
		for i := range table {
			table[i] = uint32(i % served)
		}
		err = setIndirection(dev, table)
	}
	if err != nil {
		return fmt.Errorf("af_xdp on %s: rss=served: driver %s cannot steer traffic to queues (%w): serve all %d queues, or set channels=%d",
			dev, u.driver, err, u.deviceQueues, served)
	}
	u.settings = append(u.settings, setting{settingRSS, was})
	return nil
}

// restoreSettings restores the old settings of the device in reverse order. It ignores
// errors, because the device may be gone.
func (u *Uplink) restoreSettings() {
	for i := len(u.settings) - 1; i >= 0; i-- {
		s, dev := u.settings[i], u.spec.Dev
		switch {
		case s.Name == settingRSS:
			_ = setIndirection(dev, s.Was)
		case s.Name == settingChannels && len(s.Was) == 3:
			_ = withEthtool(func(tool *ethtool.Ethtool) error {
				now, err := tool.GetChannels(dev)
				if err != nil {
					return err
				}
				now.RxCount, now.TxCount, now.CombinedCount = s.Was[0], s.Was[1], s.Was[2]
				_, err = tool.SetChannels(dev, now)
				return err
			})
		case len(s.Was) == 1:
			_, _ = swapFile(dev, s.Name, s.Was[0])
		}
	}
	u.settings = nil
}

// swapFile writes value to the file /sys/class/net/DEV/NAME, and returns the number that the file had
// before.
func swapFile(dev, name string, value uint32) (old uint32, err error) {
	path := filepath.Join("/sys/class/net", dev, name)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return 0, err
	}
	return uint32(n), os.WriteFile(path, []byte(strconv.FormatUint(uint64(value), 10)), 0)
}

// busyPollBudget is the largest number of frames in one busy poll. An interrupt has the
// same budget (NAPI_POLL_WEIGHT).
const busyPollBudget = 64

// pollBusily turns on busy polling for the queue of the socket fd, instead of interrupts. us is the
// longest time of one poll in µs.
func pollBusily(fd, us int) error {
	for _, o := range [...]struct{ option, value int }{
		{unix.SO_PREFER_BUSY_POLL, 1}, {unix.SO_BUSY_POLL, us}, {unix.SO_BUSY_POLL_BUDGET, busyPollBudget},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.option, o.value); err != nil {
			return busyPollRefused(err)
		}
	}
	return nil
}

// busyPollRefused returns an error that explains err, with which the kernel has refused busy polling,
// and says what to do.
func busyPollRefused(err error) error {
	switch {
	case errors.Is(err, unix.ENOPROTOOPT):
		return errors.New("busy_poll: the kernel is too old: SO_PREFER_BUSY_POLL needs Linux 5.11; leave busy_poll= out")
	case errors.Is(err, unix.EPERM):
		return errors.New("missing privilege: busy_poll needs CAP_NET_ADMIN")
	}
	return fmt.Errorf("busy_poll: %w; leave busy_poll= out", err)
}
