// SPDX-License-Identifier: Apache-2.0

// Package flowexport has the exporters of IPFIX and sFlow. An exporter gets sampled frames from the
// workers, and sends records of them to collectors over UDP.
//
//	export.go   the exporters, and the goroutine that serves them
//	flows.go    flows of IPFIX, their timeouts and totals
//	ipfix.go    messages of IPFIX
//	sflow.go    datagrams of sFlow
//	udp.go      collectors
//
// A caller may hold the configuration lock, but no other lock, when it takes Service.mu. While mu is
// held, no lock is taken.
package flowexport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"weft/api"
	"weft/control/limits"
	"weft/datapath"
	"weft/flowtable"
)

// Config has the settings of an exporter. It is immutable.
type Config struct {
	SFlow   bool // true: sFlow; false: IPFIX
	Bridge  string
	Targets []netip.AddrPort
	// Domain is the observation domain of IPFIX records. If OfSet is true, each action that samples frames
	// has a domain of its own instead.
	Domain uint32
	// Point is the observation point of frames that the bridge samples. OfSet is true if the actions of
	// flows sample the frames, instead of the bridge.
	Point uint32
	OfSet bool
	// ActiveTimeout is how long a flow is cached before its export, and MaxFlows the most flows in the
	// cache. If one of the two is 0, each sample is exported at once.
	ActiveTimeout    time.Duration
	MaxFlows         int
	TemplateInterval time.Duration
	VirtualID        string
	Tunnels          bool // records of frames from tunnels have the tunnel's fields
	// Agent is the address of the sFlow agent, or the device that has it. "" stands for the local
	// address of the route to the first collector.
	Agent   string
	Header  int           // most bytes of a frame in an sFlow sample
	Polling time.Duration // time between two sFlow counter samples of a port; 0: no counter samples
}

// Sample is a frame that a worker has sampled.
type Sample struct {
	datapath.Sampled
	InPort uint32
	Key    flowtable.Key // key of the frame at its last look-up
	Len    int
	Data   []byte // first bytes of the frame
}

// Interface describes a port as collectors see it.
type Interface struct {
	Number     uint32 // port number in the data path
	Index      uint32 // ifIndex of the port's device; else computed from bridge and OpenFlow
	Name, Type string
	Bridge     string
	OpenFlow   uint32
	DatapathID uint64 // datapath ID of the bridge
	TunnelPort uint16 // UDP port of a tunnel; 0: no tunnel over UDP
	Up         bool
	Mbps       uint32
	Duplex     string
	RxPackets  uint64
	RxBytes    uint64
	RxDrops    uint64
	TxPackets  uint64
	TxBytes    uint64
	TxDrops    uint64
}

// kind returns SNMP's ifType of a port: Ethernet, or 0 if the frame was sent to no port.
func (p *Interface) kind() uint32 {
	if p.Number == 0 {
		return 0
	}
	return ifTypeEthernet
}

// tunnelType returns the number that VMware's IPFIX elements use for the port's type of tunnel, or 0 if
// the port is no tunnel. tunnelProtocol returns the tunnel's IP protocol.
func (p *Interface) tunnelType() uint8 {
	return map[string]uint8{"vxlan": 1, "gre": 2, "erspan": 2, "geneve": 7}[p.Type]
}

func (p *Interface) tunnelProtocol() uint8 {
	if p.Type == "gre" || p.Type == "erspan" {
		return 47
	}
	return 17
}

// MaxFlows is the most flows that all exporters together cache. At the limit, an exporter exports its
// oldest flow early.
const MaxFlows = 1 << 16

// tick is the time between two checks of timeouts. interfaceTicks is the number of ticks between two
// reads of the ports' names and counters.
const (
	tick           = 100 * time.Millisecond
	interfaceTicks = 10
)

// Captures provides the sampled frames; observe.Captures implements it.
type Captures interface {
	Run(ctx context.Context, capture datapath.Capture, ready, idle func() error, handle func(f *datapath.Captured, lost uint64) error) error
}

// Setup has the dependencies of a Service.
type Setup struct {
	Captures   Captures
	Interfaces func() []Interface
	Now        func() time.Time // nil: time.Now
	Log        *slog.Logger
}

// Service runs the exporters of all bridges.
type Service struct {
	setup   Setup
	changed chan struct{} // capacity 1: tells Run that exporters were added or removed

	mu         sync.Mutex
	exporters  map[uint32]*exporter // by number of the exporter's port
	interfaces map[uint32]Interface
	flows      int
	evicted    uint64
	problem    string // why the workers send no samples; "": they send them
}

// exporter is a running exporter: an IPFIX exporter has the field ipfix, an sFlow exporter the field
// sflow.
type exporter struct {
	config     *Config
	ipfix      *ipfix
	sflow      *sflow
	collectors []*collector
	samples    uint64
	address    netip.Addr // address of the sFlow agent
}

// New returns a Service without exporters. Set gives it exporters, Run runs them.
func New() *Service {
	return &Service{changed: make(chan struct{}, 1), exporters: map[uint32]*exporter{}}
}

// Set replaces the exporters. configs has their settings by port number. An exporter whose Config stays
// equal keeps its state.
func (s *Service) Set(configs map[uint32]*Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for number, e := range s.exporters {
		if c := configs[number]; c == nil || !reflect.DeepEqual(c, e.config) {
			e.close(now, s)
			delete(s.exporters, number)
		}
	}
	for number, c := range configs {
		if s.exporters[number] == nil {
			s.exporters[number] = newExporter(c, now)
		}
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func newExporter(c *Config, now time.Time) *exporter {
	e := &exporter{config: c, address: netip.IPv4Unspecified()}
	if c.SFlow {
		e.sflow = newSFlow(c, now)
	} else {
		e.ipfix = newIPFIX(c)
	}
	for _, target := range c.Targets {
		e.collectors = append(e.collectors, &collector{target: target})
	}
	return e
}

func (e *exporter) send(now time.Time) func([]byte) {
	return func(message []byte) {
		for _, c := range e.collectors {
			c.send(message, now)
		}
	}
}

// close sends the cached flows and samples to the collectors, and closes their sockets.
func (e *exporter) close(now time.Time, s *Service) {
	if e.ipfix != nil {
		s.flows -= e.ipfix.oldest.Len()
		e.ipfix.expire(now, true, e.send(now))
		e.ipfix.flush(e.send(now))
	} else {
		e.sflow.flush(e.address, now, e.send(now))
	}
	for _, c := range e.collectors {
		c.close()
	}
}

func (s *Service) now() time.Time {
	if s.setup.Now != nil {
		return s.setup.Now()
	}
	return time.Now()
}

// Status describes the exporter of a port. problem is the reason why it gets or sends nothing, or "".
func (s *Service) Status(number uint32) (detail, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exporters[number]
	if e == nil {
		return "", ""
	}
	sent, failed := uint64(0), uint64(0)
	for _, c := range e.collectors {
		sent, failed = sent+c.sent, failed+c.failed
		problem = cmp.Or(problem, c.problem)
	}
	detail = fmt.Sprintf("%d samples, %d datagrams sent, %d failed", e.samples, sent, failed)
	if e.ipfix != nil {
		detail += fmt.Sprintf(", %d flows cached", e.ipfix.oldest.Len())
	}
	return detail, cmp.Or(s.problem, problem)
}

// LimitRows emits the row of `weft show limits` about cached flows.
func (s *Service) LimitRows(emit func(limits.Row)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	emit(limits.Row{Name: "ipfix_flows", Unit: "entries", Holder: limits.All(), Used: uint64(s.flows), Limit: MaxFlows, Evicted: s.evicted})
}

// Run runs the exporters until ctx ends. While there are none, it captures no frames.
func (s *Service) Run(ctx context.Context, setup Setup) {
	s.mu.Lock()
	s.setup = setup
	s.mu.Unlock()
	var capturing sync.WaitGroup
	defer capturing.Wait()
	var stop context.CancelFunc
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for n := 0; ; n++ {
		s.mu.Lock()
		count := len(s.exporters)
		s.mu.Unlock()
		switch {
		case count > 0 && stop == nil:
			var running context.Context
			running, stop = context.WithCancel(ctx)
			capturing.Go(func() { s.capture(running) })
			n = 0
		case count == 0 && stop != nil:
			stop()
			stop = nil
		}
		var ticks <-chan time.Time // nil without exporters: an idle switch is not woken
		if stop != nil {
			s.look(n%interfaceTicks == 0)
			ticks = ticker.C
		}
		select {
		case <-ctx.Done():
			if stop != nil {
				stop()
			}
			s.Set(nil)
			return
		case <-s.changed:
			n = -1
		case <-ticks:
		}
	}
}

// captureRetry is the pause after a capture that could not begin or has ended, for example at the limit
// of captures.
const captureRetry = time.Second

// capture passes sampled frames from the workers to the exporters until ctx ends.
func (s *Service) capture(ctx context.Context) {
	nothing := func() error { return nil }
	for ctx.Err() == nil {
		err := s.setup.Captures.Run(ctx, datapath.Capture{Kind: datapath.CapturePort, Port: datapath.SamplePort},
			func() error { s.note(nil); return nil }, nothing,
			func(f *datapath.Captured, _ uint64) error { s.take(f); return nil })
		if ctx.Err() == nil {
			s.note(cmp.Or(err, errors.New("the capture of sampled frames has ended")))
			select {
			case <-ctx.Done():
			case <-time.After(captureRetry):
			}
		}
	}
}

// note stores the reason why the capture does not run, for Status. nil means that it runs.
func (s *Service) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem = ""; err != nil {
		s.problem = err.Error()
		s.setup.Log.Warn("exporters get no sampled frames", "error", err)
	}
}

// take passes a sampled frame to the exporter whose number the worker has stored with the frame.
func (s *Service) take(f *datapath.Captured) {
	if f.Sampled == nil || !f.Keyed {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, now := s.exporters[uint32(f.Sampled.Exporter)], s.now()
	if e == nil { // the exporter was removed after the worker sampled the frame
		return
	}
	e.samples++
	sample := &Sample{Sampled: *f.Sampled, InPort: f.InPort, Key: f.Key, Len: f.Len, Data: f.Data}
	in, out := s.interfaces[f.InPort], s.interfaces[uint32(sample.Output)]
	if e.sflow != nil {
		e.sflow.take(sample, in, out, e.address, now, e.send(now))
		return
	}
	k, ok := keyOfFrame(sample)
	if !ok {
		return
	}
	if !e.config.OfSet {
		sample.Point = e.config.Point
	}
	before := e.ipfix.oldest.Len()
	evicted := e.ipfix.take(sample, &k, in, out, now, func() bool { return s.flows-before+e.ipfix.oldest.Len() < MaxFlows }, e.send(now))
	s.evicted += uint64(evicted)
	s.flows += e.ipfix.oldest.Len() - before
}

// look exports the flows and samples that are due. If named is true, it reads the ports' names and
// counters again.
func (s *Service) look(named bool) {
	var list []Interface
	if named {
		list = s.setup.Interfaces()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if named {
		s.interfaces = make(map[uint32]Interface, len(list))
		for _, p := range list {
			s.interfaces[p.Number] = p
		}
	}
	now := s.now()
	for _, e := range s.exporters {
		send := e.send(now)
		if e.ipfix != nil {
			before := e.ipfix.oldest.Len()
			e.ipfix.expire(now, false, send)
			s.flows += e.ipfix.oldest.Len() - before
			e.ipfix.flush(send)
			continue
		}
		if named {
			e.address = e.agent(now)
			own := slices.DeleteFunc(slices.Clone(list), func(p Interface) bool { return p.Bridge != e.config.Bridge })
			e.sflow.poll(own, e.address, now, send)
		}
		e.sflow.flush(e.address, now, send)
	}
}

// agent returns the address of the sFlow agent, or 0.0.0.0 if no address is known.
func (e *exporter) agent(now time.Time) netip.Addr {
	if a, err := netip.ParseAddr(e.config.Agent); err == nil {
		return a
	}
	if a, ok := addressOf(e.config.Agent); ok {
		return a
	}
	for _, c := range e.collectors {
		if a := c.local(now); a.IsValid() {
			return a
		}
	}
	return netip.IPv4Unspecified()
}

// InterfaceOf returns a port as collectors see it. index is the ifIndex of its device; 0: no device.
func InterfaceOf(p *api.Port, bridge uint8, datapathID uint64, index int) Interface {
	number := cmp.Or(p.OpenFlow, p.Number)
	i := Interface{Number: p.Number, Index: uint32(index), Name: p.Name, Type: p.Type, Bridge: p.Bridge, OpenFlow: number, DatapathID: datapathID,
		Up: p.State == "up", RxPackets: p.Stats.RxPackets, RxBytes: p.Stats.RxBytes, TxPackets: p.Stats.TxPackets, TxBytes: p.Stats.TxBytes, TxDrops: p.Stats.TxDrops}
	if index == 0 {
		i.Index = (uint32(bridge)+1)<<16 | number&0xffff
	}
	for _, n := range p.Stats.RxDrops {
		i.RxDrops += n
	}
	if p.Link != nil {
		i.Mbps, i.Duplex = p.Link.Mbps, p.Link.Duplex
	}
	return i
}
