// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/port"
	"weft/vhost"
)

// Engine is a vhost.Backend that opens the device in the test's process, where the test plays the
// worker. The test holds the Engine's lock while it moves frames.
type Engine struct {
	sync.Mutex
	Device port.Device // nil if no device is open
	Starts int
	Stops  int
	// Spec is the latest argument of Start.
	Spec []byte
	// Refuse makes Start fail.
	Refuse bool
	// Changes counts the calls of Changed.
	Changes atomic.Int64
}

// Start implements vhost.Backend. It opens the device, unless Refuse is set or a device is open.
func (e *Engine) Start(spec []byte, fds []int) error {
	e.Lock()
	defer e.Unlock()
	if e.Refuse {
		return errors.New("refused by the test")
	}
	if e.Device != nil {
		return errors.New("started twice")
	}
	own := make([]int, len(fds))
	for i, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return err
		}
		own[i] = dup
	}
	d, err := vhost.Open(spec, own)
	if err != nil {
		return err
	}
	e.Device, e.Spec = d, append([]byte{}, spec...)
	e.Starts++
	return nil
}

// Stop implements vhost.Backend. It closes the device and returns the positions of its rings.
func (e *Engine) Stop() ([]byte, error) {
	e.Lock()
	defer e.Unlock()
	e.Stops++
	if e.Device == nil {
		return nil, errors.New("no device")
	}
	state := e.Device.State()
	e.Device.Close()
	e.Device = nil
	return state, nil
}

// Kill closes the device without telling the session, as if the engine had died.
func (e *Engine) Kill() {
	e.Lock()
	defer e.Unlock()
	if e.Device != nil {
		e.Device.Close()
	}
	e.Device = nil
}

// Changed implements vhost.Backend. It stores nothing, it only counts.
func (e *Engine) Changed() { e.Changes.Add(1) }
