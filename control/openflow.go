// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"weft/api"
	"weft/conntrack"
	"weft/control/access"
	"weft/control/observe"
	"weft/control/ofconn"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/usererr"
	"weft/datapath"
	"weft/internal/buildinfo"
	"weft/openflow"
	"weft/openflow/ofp"
)

// OpenFlow configures connections of OpenFlow.
type OpenFlow struct {
	Socket      string   // path of the unix socket; "": none
	Listen      []string // ptcp:PORT[:HOST] and pssl:PORT[:HOST]
	Controllers []string // tcp:HOST:PORT and ssl:HOST:PORT
	Certs       string   // directory with ca.pem, cert.pem and key.pem
	Standalone  bool     // without a controller, the switch forwards by itself
	DatapathID  uint64   // 0: derived from the machine and the state directory
}

func (d *Daemon) openFlow(policy *access.Policy) error {
	c := &d.config.OpenFlow
	setup := ofconn.Setup{Switch: wireSwitch{d}, DatapathID: c.DatapathID, Name: "weft", Version: buildinfo.Own().String(),
		Controllers: c.Controllers, Standalone: c.Standalone, Frames: d.controllerFrames.set, Log: d.log,
		Role: func(nc net.Conn) (ofconn.Role, string) { return wireRole(policy, nc) }}
	if setup.DatapathID == 0 {
		setup.DatapathID = datapathID(d.config.StateDir)
	}
	for _, text := range append(c.Listen[:len(c.Listen):len(c.Listen)], c.Controllers...) {
		if !strings.HasPrefix(text, "pssl:") && !strings.HasPrefix(text, "ssl:") || setup.TLS != nil {
			continue
		}
		config, err := ofconn.LoadTLS(c.Certs)
		if err != nil {
			return usererr.Errorf("%s: %v; expected the directory of the certificates in --openflow-certs", text, err)
		}
		setup.TLS = config
	}
	listeners, err := openFlowListeners(c, policy, setup.TLS)
	if err != nil {
		return err
	}
	setup.Listeners = listeners
	d.wire = ofconn.New(setup)
	d.limits.Add(d.wire.LimitRows)
	d.flowMonitors.wire, d.controllerFrames.daemon = d.wire, d
	return nil
}

func openFlowListeners(c *OpenFlow, policy *access.Policy, config *tls.Config) (list []net.Listener, err error) {
	defer func() {
		if err != nil {
			for _, l := range list {
				l.Close()
			}
		}
	}()
	if c.Socket != "" {
		l, err := access.ListenUnix(c.Socket, policy)
		if err != nil {
			return list, err
		}
		list = append(list, l)
	}
	for _, text := range c.Listen {
		l, err := ofconn.Listen(text, config)
		if err != nil {
			return list, usererr.Errorf("openflow-listen: %v", err)
		}
		list = append(list, l)
	}
	return list, nil
}

// wireRole returns a peer's role. A TCP listener gives every peer role Write, as with
// Open vSwitch; TLS requires a certificate.
func wireRole(policy *access.Policy, nc net.Conn) (ofconn.Role, string) {
	peer := policy.Identify(nc)
	if _, unix := nc.(*net.UnixConn); !unix {
		return ofconn.Write, peer.Share
	}
	switch peer.Role {
	case access.Write:
		return ofconn.Write, peer.Share
	case access.Read:
		return ofconn.Read, peer.Share
	}
	return ofconn.None, peer.Share
}

// datapathID returns a number of 48 bits, constant for the machine and the state
// directory.
func datapathID(stateDir string) uint64 {
	h := fnv.New64a()
	machine, _ := os.ReadFile("/etc/machine-id")
	if dir, err := filepath.Abs(stateDir); err == nil {
		stateDir = dir
	}
	h.Write(append(machine, stateDir...))
	return h.Sum64() >> 16
}

// portMAC returns a locally administered address made from the port's name, because
// Weft's ports have none.
func portMAC(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	b := h.Sum(nil)
	return binary.BigEndian.Uint64(b)>>24&0xffffffffff | 0x02<<40
}

// wireSwitch is an ofconn.Switch.
type wireSwitch struct{ *Daemon }

func (w wireSwitch) ApplyEach(mods []openflow.FlowMod) []error { return w.pipeline.ApplyEach(mods) }

func (w wireSwitch) ApplyBundle(items []openflow.BundleItem) (int, error) {
	return w.pipeline.ApplyBundle(items)
}

func (w wireSwitch) PullCounts() { w.pipeline.PullCounts() }

func (w wireSwitch) ScanRules(filter *openflow.FlowMod, from uint32, rules []openflow.Rule) ([]openflow.Rule, uint32, bool) {
	return w.pipeline.ScanRules(filter, from, rules)
}

func (w wireSwitch) ApplyGroups(mods []openflow.GroupMod) error { return w.pipeline.ApplyGroups(mods) }

func (w wireSwitch) Groups(id uint32) []ofconn.Group {
	var list []ofconn.Group
	for _, g := range w.pipeline.Groups(id) {
		list = append(list, ofconn.Group{Group: g.Group, Stats: g.Stats, Flows: g.Flows})
	}
	return list
}

func (w wireSwitch) ApplyMeters(mods []openflow.MeterMod) error { return w.pipeline.ApplyMeters(mods) }

func (w wireSwitch) Meters(id uint32) []ofconn.Meter {
	var list []ofconn.Meter
	for _, m := range w.pipeline.Meters(id) {
		list = append(list, ofconn.Meter{Meter: m.Meter, Counters: ofp.MeterCounters{ID: m.ID, Flows: uint32(m.Flows),
			Packets: m.Packets, Bytes: m.Bytes, DurationNS: m.AgeNS, Bands: m.Dropped}})
	}
	return list
}

func (w wireSwitch) Tables() []ofp.TableState {
	configs, flows := w.pipeline.TableConfigs()
	var list []ofp.TableState
	for t := range openflow.Tables - 1 {
		limit := uint32(configs[t].Limit)
		if limit == 0 {
			limit = pipeline.MaxFlows
		}
		list = append(list, ofp.TableState{ID: uint8(t), Flows: uint32(flows[t]), MaxEntries: limit, Evict: configs[t].Evict})
	}
	return list
}

func (w wireSwitch) SetEviction(table uint8, evict bool) error {
	mod := api.ModTable{Table: int(table), Settings: []string{"noevict"}}
	if table == openflow.TableAll {
		mod.Table = -1
	}
	if evict {
		mod.Settings = []string{"evict"}
	}
	return w.pipeline.ModTable(mod)
}

// unknownNS is the duration in messages if the real one is unknown.
const unknownNS = 0xffffffff * uint64(time.Second)

func (w wireSwitch) Ports() []ofconn.Port {
	list, _ := w.ports.List("") // fails for an unknown name only
	var all []ofconn.Port
	for _, p := range list {
		var dropped uint64
		for _, n := range p.Stats.RxDrops {
			dropped += n
		}
		port := ofconn.Port{Port: ofp.Port{No: p.Number, Name: p.Name, MAC: portMAC(p.Name)},
			Counters: ofp.PortCounters{No: p.Number, RxPackets: p.Stats.RxPackets, TxPackets: p.Stats.TxPackets, RxBytes: p.Stats.RxBytes,
				TxBytes: p.Stats.TxBytes, RxDropped: dropped, TxDropped: p.Stats.TxDrops, DurationNS: unknownNS}}
		if port.State = ofp.StateDown; p.State == ports.StateUp {
			port.State = ofp.StateLive
		}
		all = append(all, port)
	}
	return all
}

func (w wireSwitch) Send(out *openflow.PacketOut) error { return w.pipeline.Send(out) }

func (w wireSwitch) FlushConnections(m *ofp.CTMatch) error {
	tuple := func(t *ofp.CTTuple) conntrack.TupleFilter {
		f := conntrack.TupleFilter{Src: t.Src, Dst: t.Dst, SrcPort: t.SrcPort, DstPort: t.DstPort, ID: t.ID, Type: t.Type, Code: t.Code}
		if *t != (ofp.CTTuple{}) && m.Proto != 0 {
			f.Proto = &m.Proto
		}
		return f
	}
	f := conntrack.Filter{Zone: m.Zone, Mark: m.Mark, MarkMask: m.MarkMask, Label: m.Label, LabelMask: m.LabelMask,
		Orig: tuple(&m.Orig), Reply: tuple(&m.Reply)}
	if m.Proto != 0 && f.Orig.Proto == nil && f.Reply.Proto == nil {
		f.Orig.Proto = &m.Proto
	}
	_, err := w.tracking.Flush(&f)
	return err
}

// flowMonitors passes changes of flows to the API and to OpenFlow connections.
type flowMonitors struct {
	api  *observe.Monitors
	wire *ofconn.Service // nil before newDaemon has made it
}

func (m *flowMonitors) Count() int {
	if m.wire == nil {
		return m.api.Count()
	}
	return m.api.Count() + m.wire.Count()
}

var wireEvents = map[string]ofp.FlowEvent{api.EventAdded: ofp.FlowAdded, api.EventModified: ofp.FlowModified,
	api.EventDeleted: ofp.FlowDeleted, api.EventExpired: ofp.FlowDeleted}

func (m *flowMonitors) TellFlow(now time.Time, event string, r *openflow.Rule, describe func() api.Flow) {
	m.api.TellFlow(now, event, r, describe)
	if m.wire != nil && m.wire.Count() > 0 {
		m.wire.TellFlow(wireEvents[event], r)
	}
}

// controllerFrames passes the frames that flows send to the controller to OpenFlow
// connections, through a tap of the workers, while a connection wants them.
type controllerFrames struct {
	daemon *Daemon
	stop   context.CancelFunc // nil: stopped
	misses bool               // frames that match no flow come, too
}

// framesPatience is the time for which a connection waits for its tap. A worker that
// hangs delays the tap for longer.
const framesPatience = time.Second

// set starts or stops the frames. ofconn calls it from one goroutine at a time.
func (f *controllerFrames) set(on, misses bool) {
	if misses != f.misses {
		f.misses = misses
		f.daemon.pipeline.SendMisses(misses)
	}
	if on == (f.stop != nil) {
		return
	}
	if f.stop != nil {
		f.stop()
		f.stop = nil
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	ready := make(chan struct{})
	go func() {
		d := f.daemon
		var once sync.Once
		began := func() error { once.Do(func() { close(ready) }); return nil }
		tap := datapath.Tap{Kind: datapath.TapPort, Port: datapath.ControllerPort}
		err := d.captures.Run(ctx, tap, began, func() error { return nil }, func(c *datapath.Capture, _ uint64) error {
			d.packetIn(c)
			return nil
		})
		if err != nil && ctx.Err() == nil {
			d.log.Error("frames for OpenFlow controllers", "error", err)
		}
		_ = began() // a failed start must not delay the connection
	}()
	select {
	case <-ready:
	case <-time.After(framesPatience):
	}
}

// packetIn sends a captured frame to the controllers.
func (d *Daemon) packetIn(c *datapath.Capture) {
	p := ofp.PacketIn{Frame: c.Data, Total: c.Len, Reason: ofp.ReasonAction, Cookie: ^uint64(0), InPort: c.InPort}
	note, known := d.pipeline.ControllerNote(c.Note)
	if known {
		p.Reason, p.Table, p.Cookie, p.Userdata = note.ReasonCode(), note.Table, note.Cookie, note.Userdata
		if note.Miss {
			p.Reason = ofp.ReasonMiss
		}
	}
	p.Metadata = note.Metadata(c.InPort)
	d.wire.SendPacketIn(&p, note.ID)
}
