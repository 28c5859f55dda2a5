// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"weft/internal/buildinfo"
	"weft/port"
)

// Limits of the engine.
const (
	// maxKept is the largest number of keys that OpKeep may use. The engine refuses a further key.
	maxKept = 16384
	// heapLimit is the heap size in bytes at which the Go runtime itself collects garbage. Usually the
	// type collector has done so before.
	heapLimit = 1 << 30
)

// Opener opens a device from the specification and the descriptors that the control process has sent. It
// owns fds, even if it fails. Each kind of device has one.
type Opener func(spec []byte, fds []int) (port.Device, error)

// server is the state of the engine process. The goroutine that serves the control process owns it.
type server struct {
	openers map[string]Opener
	workers *pool // workers, or nil before OpStart
	start   *Kept
	ports   []*attached // attached ports, in the order of attachment
	kept    map[string]*Kept
	lock    *os.File // locked while this engine serves the state directory; nil in a rehearsal
	halted  bool     // OpHalt has ended the workers
	keys    []string // keys of the map kept, in the order in which they were first stored
	garbage *collector
}

// attached is an attached port: its request OpAttach and its open device.
type attached struct {
	Kept
	device port.Device
}

// handle executes one request. It owns fds.
func (s *server) handle(req *Request, fds []int) Reply {
	var reply Reply
	var err error
	switch req.Op {
	case OpStart:
		reply.Build = ownBuild()
		err = s.startWorkers(req, fds)
	case OpAttach:
		err = s.attach(req, fds)
	case OpDetach:
		closeAll(fds)
		reply.State, err = s.detach(req.Port)
	case OpKeep:
		err = s.keep(req, fds)
	case OpForget:
		closeAll(fds)
		s.forget(req.Key)
	case OpHalt:
		closeAll(fds)
		err = s.halt()
	case OpStop:
		closeAll(fds)
	default:
		closeAll(fds)
		err = fmt.Errorf("request %q: expected start, attach, detach, keep, forget, recall, more, halt or stop", req.Op)
	}
	if err != nil {
		return Reply{Error: err.Error()}
	}
	return reply
}

func (s *server) startWorkers(req *Request, fds []int) error {
	if s.workers != nil {
		closeAll(fds)
		return errors.New("start: the workers are already running")
	}
	if req.Start == nil {
		closeAll(fds)
		return errors.New("start: the request has no start field")
	}
	dups, err := duplicate(fds)
	if err != nil {
		closeAll(fds)
		return err
	}
	workers, err := newPool(*req.Start, fds)
	if err != nil {
		closeAll(dups)
		return fmt.Errorf("start: %w", err)
	}
	s.workers, s.start = workers, &Kept{Request: *req, FDs: dups}
	return nil
}

// halt ends the workers and unlocks the state directory, so that the spare engine begins to serve.
func (s *server) halt() error {
	if s.workers == nil || s.lock == nil {
		return errors.New("halt: no workers serve")
	}
	s.workers.halt()
	s.halted = true
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_UN); err != nil {
		return fmt.Errorf("halt: unlock %s: %w", s.lock.Name(), err)
	}
	return nil
}

func (s *server) attach(req *Request, fds []int) error {
	a := req.Attach
	if a == nil || a.Port == 0 || a.Port >= port.MaxPorts {
		closeAll(fds)
		return fmt.Errorf("attach: invalid port: expected 1 to %d", port.MaxPorts-1)
	}
	if s.halted {
		closeAll(fds)
		return fmt.Errorf("attach %s: the workers have been halted", a.Name)
	}
	if s.workers == nil {
		closeAll(fds)
		return fmt.Errorf("attach %s: the workers have not been started", a.Name)
	}
	open := s.openers[a.Kind]
	if open == nil {
		closeAll(fds)
		return fmt.Errorf("attach %s: unknown device kind %q", a.Name, a.Kind)
	}
	// The old device releases its memory before the new one opens.
	s.remove(a.Port)
	device, err := open(a.Spec, fds)
	if err != nil {
		return fmt.Errorf("attach %s: %w", a.Name, err)
	}
	if err := s.workers.add(a.Port, device, a.Tunnel); err != nil {
		s.workers.remove(a.Port)
		device.Close()
		return fmt.Errorf("attach %s: %w", a.Name, err)
	}
	s.ports = append(s.ports, &attached{Kept: Kept{Request: *req}, device: device})
	return nil
}

func (s *server) detach(number uint32) (json.RawMessage, error) {
	state, was := s.remove(number)
	if !was {
		return nil, fmt.Errorf("detach: port %d is not attached", number)
	}
	return state, nil
}

// remove takes a port from the workers, closes its device and returns the device's State. attached is
// false if the engine does not have the port.
func (s *server) remove(number uint32) (state json.RawMessage, attached bool) {
	for i, p := range s.ports {
		if p.Request.Attach.Port != number {
			continue
		}
		s.workers.remove(number)
		state = p.device.State()
		p.device.Close()
		s.ports = append(s.ports[:i], s.ports[i+1:]...)
		return state, true
	}
	return nil, false
}

func (s *server) keep(req *Request, fds []int) error {
	old := s.kept[req.Key]
	if req.Key == "" || old == nil && len(s.kept) == maxKept {
		closeAll(fds)
		return fmt.Errorf("keep %q: expected a key, and at most %d keys", req.Key, maxKept)
	}
	if old != nil {
		old.CloseFDs()
	} else {
		s.keys = append(s.keys, req.Key)
	}
	s.kept[req.Key] = &Kept{Request: *req, FDs: fds}
	return nil
}

func (s *server) forget(key string) {
	k := s.kept[key]
	if k == nil {
		return
	}
	k.CloseFDs()
	delete(s.kept, key)
	for i := range s.keys {
		if s.keys[i] == key {
			s.keys = append(s.keys[:i], s.keys[i+1:]...)
			return
		}
	}
}

// recall sends all stored requests with their descriptors, which the kernel duplicates.
func (s *server) recall(conn *net.UnixConn) error {
	var all []*Kept
	if s.start != nil {
		all = append(all, s.start)
	}
	for _, p := range s.ports {
		all = append(all, &p.Kept)
	}
	for _, key := range s.keys {
		all = append(all, s.kept[key])
	}
	for _, k := range all {
		if err := sendMessage(conn, Reply{Kept: &k.Request}, k.FDs); err != nil {
			return err
		}
	}
	return sendMessage(conn, Reply{Last: true, Halted: s.halted, Build: ownBuild()}, nil)
}

func ownBuild() *buildinfo.Build {
	b := buildinfo.Own()
	return &b
}

// close closes all ports and kept descriptors, and ends the workers.
func (s *server) close() {
	for len(s.ports) > 0 {
		s.remove(s.ports[0].Request.Attach.Port)
	}
	if s.workers != nil {
		s.workers.stop()
	}
	if s.start != nil {
		s.start.CloseFDs()
	}
	for len(s.keys) > 0 {
		s.forget(s.keys[0])
	}
}
