// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// snapshot is the JSON text of part 0 of a session's state (type Part). Conn, Listener and the
// descriptors in Front are indexes into Part.FDs.
type snapshot struct {
	Version  int      `json:"version"`
	Front    frontEnd `json:"front"`
	Running  bool     `json:"running"`
	Conn     int      `json:"conn"` // -1: not connected
	Listener int      `json:"listener"`
}

const snapshotVersion = 2

func addConn(c syscall.Conn, add func(int) int) int {
	index := -1
	raw, err := c.SyscallConn()
	if err != nil {
		return index
	}
	_ = raw.Control(func(fd uintptr) { index = add(int(fd)) })
	return index
}

// Restore makes a session from the parts that an earlier control process has stored with the engine. A
// running device continues without a Start. If part 0 is missing, Restore makes a new session. It
// takes ownership of the descriptors, also if it fails.
func Restore(cfg Config, b Backend, parts []Part) (*Session, error) {
	at := slices.IndexFunc(parts, func(p Part) bool { return p.Number == 0 && len(p.Blob) > 0 })
	if at < 0 {
		closeParts(parts)
		return NewSession(cfg, b)
	}
	fds := parts[at].FDs
	snap := snapshot{Front: frontEnd{Record: -1, Backend: -1}}
	err := json.Unmarshal(parts[at].Blob, &snap)
	if err == nil && snap.Version != snapshotVersion {
		err = fmt.Errorf("version %d, expected %d", snap.Version, snapshotVersion)
	}
	if err == nil {
		err = adoptFDs(snap.Front.eachFD, fds)
	}
	if err == nil {
		err = snap.Front.join(parts, max(cfg.Queues, 1), snap.Conn >= 0)
	}
	if err == nil {
		err = snap.Front.checkEvents()
	}
	if err != nil {
		closeParts(parts)
		return nil, fmt.Errorf("vhost: restored session: %w", err)
	}
	s, err := newSession(cfg, b)
	if err != nil {
		closeParts(parts)
		return nil, err
	}
	for i := range parts {
		if parts[i].Number != 0 && (snap.Conn < 0 || parts[i].Number >= len(s.stale)) {
			parts[i].Close() // no ring has taken these descriptors
		}
	}
	s.front, s.running = snap.Front, snap.Running
	s.heard = true // no firstMessageTimeout: the front end may have sent messages already
	s.front.drop(&s.front.Backend)
	s.front.measure()
	s.memory.adopt(s.front.footprint())
	s.resume = true // the engine may have used the rings since the snapshot was taken
	if err := s.adoptSockets(snap, fds); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// adoptFDs replaces indexes into fds by the descriptors. walk must call visit with the address of each
// index.
func adoptFDs(walk func(visit func(fd *int)), fds []int) (err error) {
	walk(func(fd *int) {
		if *fd < 0 || *fd >= len(fds) {
			err = fmt.Errorf("descriptor %d of %d", *fd, len(fds))
			return
		}
		*fd = fds[*fd]
	})
	return err
}

// checkEvents returns an error if a kick, call or err descriptor of the restored session is not an eventfd.
// The engine process has kept the descriptors since the last control process. The new control process does
// not trust them, because a guest may have broken into the engine process.
func (f *frontEnd) checkEvents() error {
	for i := range f.Vrings {
		v := &f.Vrings[i]
		for _, fd := range []int{v.Kick, v.Call, v.Err} {
			if fd < 0 {
				continue
			}
			if err := shm.CheckEvent(fd); err != nil {
				return fmt.Errorf("vring %d: %w", i, err)
			}
		}
	}
	return nil
}

// measure computes the size of each region's mapping. The stored state does not have this size.
func (f *frontEnd) measure() {
	for i := range f.Regions {
		r := &f.Regions[i]
		r.span = r.Size
		// error ignored: the engine cannot map such a region either
		if _, length, err := checkFile(*r, r.FD); err == nil {
			r.span = length
		}
	}
}

// adoptSockets makes s.conn and s.listener from their descriptors in fds. Package net duplicates the
// descriptors, and adoptSockets closes the originals.
func (s *Session) adoptSockets(snap snapshot, fds []int) error {
	var first error
	adopt := func(index int, make func(*os.File) error) {
		if index < 0 {
			return
		}
		if index >= len(fds) {
			first = fmt.Errorf("vhost: restored session: descriptor %d of %d", index, len(fds))
			return
		}
		f := os.NewFile(uintptr(fds[index]), s.cfg.Path)
		defer f.Close()
		if err := make(f); err != nil && first == nil {
			first = fmt.Errorf("vhost: restored session: %w", err)
		}
	}
	adopt(snap.Conn, func(f *os.File) error {
		conn, err := net.FileConn(f)
		if err != nil {
			return err
		}
		var ok bool
		if s.conn, ok = conn.(*net.UnixConn); !ok {
			conn.Close()
			return fmt.Errorf("%T is no unix socket", conn)
		}
		return nil
	})
	adopt(snap.Listener, func(f *os.File) error {
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		var ok bool
		if s.listener, ok = l.(*net.UnixListener); !ok {
			l.Close()
			return fmt.Errorf("%T is no unix socket", l)
		}
		s.listener.SetUnlinkOnClose(false)
		return nil
	})
	if first == nil && !s.cfg.Client && s.listener == nil {
		s.listener, first = listen(s.cfg.Path, s.cfg.Access)
	}
	return first
}

func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

// Spec returns the description of the device for a new engine: a DeviceSpec in JSON and duplicates of
// the device's descriptors, which the caller closes. If isRunning is false, no engine should run the
// device. resume says that the previous engine has died, so that the new engine takes the ring
// positions from guest memory. Any goroutine may call Spec.
func (s *Session) Spec(resume bool) (spec []byte, fds []int, isRunning bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return nil, nil, false
	}
	d, own := s.front.spec(s.cfg.MTU, resume)
	for _, fd := range own {
		dup, err := duplicate(fd)
		if err != nil {
			s.log.Error("vhost-user: duplicate of a descriptor", "error", err)
			closeAll(fds)
			return nil, nil, false
		}
		fds = append(fds, dup)
	}
	spec, err := json.Marshal(d)
	if err != nil {
		closeAll(fds)
		return nil, nil, false
	}
	return spec, fds, true
}

// Status is the state of a session for commands that show it.
type Status struct {
	Path      string        `json:"path"`
	Mode      string        `json:"mode"` // "client" or "server"
	Connected bool          `json:"connected"`
	Running   bool          `json:"running"` // the engine has the device
	Features  []string      `json:"features,omitempty"`
	Queues    int           `json:"queues"` // number of queue pairs offered
	Vrings    []VringStatus `json:"vrings,omitempty"`
	Memory    uint64        `json:"memory_bytes"`
	Regions   int           `json:"memory_regions"`
	MTU       int           `json:"mtu,omitempty"`
	LastError string        `json:"last_error,omitempty"` // reason why the session is not connected, or why its last connection ended
	Connects  uint64        `json:"connects"`
	Breaks    uint64        `json:"breaks"` // number of connections closed because of an error or a fault
	// Throttled counts the messages and connections that waited for the message
	// budget.
	Throttled uint64 `json:"throttled,omitempty"`
}

// VringStatus is the state of one ring that the front end has set up.
type VringStatus struct {
	Index   int  `json:"index"`
	Num     int  `json:"num"`
	Enabled bool `json:"enabled"`
	Kick    bool `json:"kick"` // the ring has a kick descriptor; without one the switch polls the ring
	Call    bool `json:"call"`
}

// Status returns the state of the session. Any goroutine may call it.
func (s *Session) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Path: s.cfg.Path, Mode: "server", Connected: s.conn != nil, Running: s.running,
		Features: FeatureNames(s.front.Features), Queues: s.cfg.Queues, Regions: len(s.front.Regions), MTU: s.front.MTU,
		LastError: s.lastError, Connects: s.connects, Breaks: s.breaks, Throttled: s.throttled}
	if s.cfg.Client {
		st.Mode = "client"
	}
	for _, r := range s.front.Regions {
		st.Memory += r.Size
	}
	for i := range s.front.Vrings {
		if v := &s.front.Vrings[i]; v.usable() {
			st.Vrings = append(st.Vrings, VringStatus{Index: i, Num: v.Num, Enabled: v.Enabled, Kick: v.Kick >= 0, Call: v.Call >= 0})
		}
	}
	return st
}
