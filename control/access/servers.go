// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"

	"github.com/mdlayher/vsock"

	"weft/control/limits"
	"weft/control/usererr"
)

// Config is the configuration of the listeners.
type Config struct {
	Socket    string // path of the API's unix socket
	VsockPort uint32 // vsock port of the API; 0: no vsock listener
	Metrics   string // TCP address of the metrics listener; "": no listener
	Policy    Policy
	Log       *slog.Logger
}

// Servers has the listeners of the process, and the limits that the peers of all listeners share.
type Servers struct {
	log     *slog.Logger
	reserve *Reserve
	work    *Work
	scrapes *Work // requests to the metrics listener
	bodies  *Bodies
	streams *Streams
	api     []*Listener
	metrics *Listener // nil: no metrics listener
	running []*http.Server
}

// listenVsock is a variable so that tests can replace it: most machines have no vsock.
var listenVsock = func(port uint32) (net.Listener, error) { return vsock.Listen(port, nil) }

// Open opens the listeners. Requests are answered from Serve on. The text of an error is one line for
// the operator.
func Open(c Config) (*Servers, error) {
	s := &Servers{log: c.Log, work: newWork("api_expensive"), scrapes: newWork("metrics_requests"), bodies: newBodies(), streams: newStreams(), reserve: newReserve(reserveSize)}
	l, err := ListenUnix(c.Socket, &c.Policy)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.api = append(s.api, Listen(l, newGate("api_connections", maxConnections), c.Policy.Identify, s.reserve))
	if c.VsockPort != 0 {
		// On a machine without vsock, the API has only the unix socket.
		if l, err := listenVsock(c.VsockPort); err != nil {
			c.Log.Warn("the API does not listen on vsock", "port", c.VsockPort, "error", err)
		} else {
			s.api = append(s.api, Listen(l, newGate("vsock_connections", maxVsockConnections), c.Policy.Identify, nil))
		}
	}
	if c.Metrics == "" {
		return s, nil
	}
	l, err = net.Listen("tcp", c.Metrics)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("metrics address %s: %w", c.Metrics, cause(err))
	}
	s.metrics = Listen(l, newGate("metrics_connections", maxMetricsConnections), c.Policy.Identify, nil)
	return s, nil
}

// NewMux returns a Mux. table maps the pattern of each route (see http.ServeMux) to the role that it
// needs and the limits of its requests. The caller adds the handlers with HandleFunc.
func (s *Servers) NewMux(table map[string]Route) *Mux {
	return &Mux{mux: http.NewServeMux(), table: table, work: s.work, bodies: s.bodies, stream: s.streams, log: s.log}
}

// Serve begins to answer requests and returns. The handler api serves the API's listeners, the handler
// metrics serves the metrics listener.
func (s *Servers) Serve(api, metrics http.Handler) {
	for _, l := range s.api {
		s.run(newServer(api), l)
	}
	if s.metrics != nil {
		s.run(newMetricsServer(s.scrapes.guard(metrics)), s.metrics)
	}
}

func (s *Servers) run(server *http.Server, l *Listener) {
	s.running = append(s.running, server)
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("listener failed", "address", l.Addr(), "error", err)
		}
	}()
}

// Close closes all listeners, sockets and connections.
func (s *Servers) Close() {
	for _, server := range s.running {
		server.Close()
	}
	for _, l := range s.api {
		l.Close() // the unix listener removes its socket
	}
	if s.metrics != nil {
		s.metrics.Close()
	}
	s.reserve.Close()
}

// LimitRows emits the rows of `weft show limits` about the listeners and their requests.
func (s *Servers) LimitRows(emit func(limits.Row)) {
	for _, l := range s.api {
		l.Gate.LimitRows(emit)
	}
	if s.metrics != nil {
		s.metrics.Gate.LimitRows(emit)
		s.scrapes.LimitRows(emit)
	}
	s.work.LimitRows(emit)
	s.bodies.LimitRows(emit)
	s.streams.LimitRows(emit)
	descriptorRows(emit)
}

func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err
	}
	return usererr.Cause(err)
}
