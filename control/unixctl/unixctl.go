// SPDX-License-Identifier: Apache-2.0

// Package unixctl serves ovs-appctl, as the daemons of Open vSwitch do: JSON-RPC on a unix
// socket that ovs-appctl finds through a pid file. A request names a command and has words as
// parameters; the answer is text.
package unixctl

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"weft/control/access"
	"weft/control/limits"
)

const (
	// daemon is the name by which ovs-appctl -t finds the pid file and the socket.
	daemon = "ovs-vswitchd"
	// maxConnections limits the connections to the socket. Further ones are closed at once.
	maxConnections = 16
	// maxRequest limits the bytes of one connection's requests.
	maxRequest = 1 << 20
)

// Command is a command of ovs-appctl.
type Command struct {
	Name, Usage string
	Least, Most int  // least and largest number of words after the name
	Changes     bool // the command changes the switch, so peers that may only read cannot use it
	Run         func(words []string) (string, error)
}

// Server serves the commands of ovs-appctl on a unix socket.
type Server struct {
	commands []Command // sorted by name
	policy   *access.Policy
	listener net.Listener
	pidFile  *os.File
	log      *slog.Logger

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	refused uint64
}

// Open writes the pid file in a directory, and opens the socket beside it. The pid file stays
// locked as long as the process lives. From the lock, ovs-appctl knows that the file is not
// stale.
func Open(dir string, policy *access.Policy, commands []Command, log *slog.Logger) (*Server, error) {
	s := &Server{policy: policy, log: log, conns: map[net.Conn]struct{}{}}
	s.commands = append(slices.Clone(commands), Command{Name: "list-commands", Run: func([]string) (string, error) { return s.list(), nil }})
	slices.SortFunc(s.commands, func(a, b Command) int { return strings.Compare(a.Name, b.Name) })
	pid := os.Getpid()
	removeStale(dir)
	var err error
	if s.listener, err = access.ListenUnix(filepath.Join(dir, fmt.Sprintf("%s.%d.ctl", daemon, pid)), policy); err != nil {
		return nil, err
	}
	if s.pidFile, err = writePID(filepath.Join(dir, daemon+".pid"), pid); err != nil {
		s.listener.Close()
		return nil, err
	}
	return s, nil
}

// removeStale removes the sockets of weftd processes that were killed.
func removeStale(dir string) {
	sockets, _ := filepath.Glob(filepath.Join(dir, daemon+".*.ctl")) // the pattern is valid
	for _, path := range sockets {
		pid := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), daemon+"."), ".ctl")
		if n, err := strconv.Atoi(pid); err == nil && unix.Kill(n, 0) == unix.ESRCH {
			_ = os.Remove(path) // error ignored: the file does no harm
		}
	}
}

// writePID writes and locks a pid file. It refuses to replace the file of another living
// process.
func writePID(path string, pid int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lock); err != nil {
		f.Close()
		return nil, fmt.Errorf("pid file %s: another process has it: %w", path, err)
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(pid)+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("pid file %s: %w", path, err)
	}
	return f, nil
}

// Run serves connections until ctx ends. It then removes the pid file and the socket.
func (s *Server) Run(ctx context.Context) {
	var serving sync.WaitGroup
	stop := context.AfterFunc(ctx, func() {
		s.listener.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			c.Close()
		}
	})
	defer stop()
	for {
		c, err := s.listener.Accept()
		if err != nil {
			break
		}
		if !s.enter(ctx, c) {
			c.Close()
			continue
		}
		serving.Go(func() {
			defer s.leave(c)
			s.serve(c)
		})
	}
	serving.Wait()
	_ = os.Remove(s.pidFile.Name())
	s.pidFile.Close()
}

func (s *Server) enter(ctx context.Context, c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConnections {
		s.refused++
		return false
	}
	if ctx.Err() != nil || s.policy.Identify(c).Role == access.None {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

// LimitRows emits the row of `weft show limits` about connections to the socket.
func (s *Server) LimitRows(emit func(limits.Row)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	emit(limits.Row{Name: "appctl_connections", Unit: "connections", Used: uint64(len(s.conns)), Limit: maxConnections, Refused: s.refused})
}

func (s *Server) leave(c net.Conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// serve answers the JSON-RPC requests of a connection, one after the other.
func (s *Server) serve(c net.Conn) {
	d := json.NewDecoder(io.LimitReader(bufio.NewReader(c), maxRequest))
	mayChange := s.policy.Identify(c).Role == access.Write
	for {
		var request struct {
			Method string          `json:"method"`
			Params []string        `json:"params"`
			ID     json.RawMessage `json:"id"`
		}
		if d.Decode(&request) != nil {
			return
		}
		reply := map[string]any{"id": request.ID, "result": nil, "error": nil}
		if text, err := s.run(request.Method, request.Params, mayChange); err != nil {
			reply["error"] = err.Error() + "\n"
		} else {
			reply["result"] = text
		}
		text, err := json.Marshal(reply)
		if err == nil {
			_, err = c.Write(text)
		}
		if err != nil {
			return
		}
	}
}

func (s *Server) run(name string, words []string, mayChange bool) (string, error) {
	i, there := slices.BinarySearchFunc(s.commands, name, func(c Command, name string) int { return strings.Compare(c.Name, name) })
	if !there {
		return "", fmt.Errorf("%q is not a valid command (use \"list-commands\" to see a list of valid commands)", name)
	}
	c := &s.commands[i]
	switch {
	case len(words) < c.Least:
		return "", fmt.Errorf("%q command requires at least %d arguments", name, c.Least)
	case len(words) > c.Most:
		return "", fmt.Errorf("%q command takes at most %d arguments", name, c.Most)
	case c.Changes && !mayChange:
		return "", fmt.Errorf("%s: this peer may only read", name)
	}
	return c.Run(words)
}

// list returns the answer to list-commands.
func (s *Server) list() string {
	var b strings.Builder
	b.WriteString("The available commands are:\n")
	for _, c := range s.commands {
		fmt.Fprintf(&b, "  %-23s %s\n", c.Name, c.Usage)
	}
	return b.String()
}
