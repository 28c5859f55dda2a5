// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/offload"
)

// Config describes an uplink for Setup.
type Config struct {
	// Dev is the network device, in the network namespace of this process.
	Dev string
	// Queues is the number of packet sockets; 0 means 1. The kernel distributes flows
	// over them.
	Queues int
	// Slots is the number of slots of each socket's ring, a power of two; 0 means the
	// default.
	Slots int
	// NoRing is the reason why the sockets must not have rings; "" allows rings.
	NoRing string
	// All makes a port of the device instead of an uplink: the sockets take every frame
	// that arrives at the device, and the kernel's stack sees none (all.go).
	All bool
	// Offload lets the kernel forward known flows (package offload): all flows of a port of a device, or flows
	// from the tunnels of an uplink.
	Offload bool
}

// Uplink is the handle with which the control process sets up an uplink. The control process owns it. Only
// one goroutine may use it at a time.
type Uplink struct {
	spec      spec
	ifindex   int
	veth      bool
	sockets   []int            // packet sockets, then the feeder if there is one
	noFeeder  string           // reason why there is no feeder
	noRing    string           // reason why a socket has no ring
	endpoints []netip.AddrPort // sorted
	sinks     []int            // UDP sockets, sinks[i] for endpoints[i]
	ingress   link.Link        // ingress program's link; nil: none
	flows     *offload.Table   // flows that run in the kernel; nil: none can
	noFlows   string           // reason why u.flows is nil although Config.Offload asks for it
	noIngress string           // reason why the kernel's stack also sees the tunnels' datagrams
	counts    [MaxQueues]counts
	checked   [MaxQueues]counts // counts at the last Check
}

// Setup makes an uplink or, with Config.All, a port of a network device. An uplink receives nothing
// until SetEndpoints. The text of an error is one line. A failed Setup leaves nothing behind.
func Setup(cfg Config) (*Uplink, error) {
	if cfg.Queues == 0 {
		cfg.Queues = 1
	}
	if cfg.Queues < 0 || cfg.Queues > MaxQueues {
		return nil, fmt.Errorf("af_packet on %s: %d queues: expected 1 to %d", cfg.Dev, cfg.Queues, MaxQueues)
	}
	link, err := netlink.LinkByName(cfg.Dev)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, fmt.Errorf("af_packet: no network device %q", cfg.Dev)
	}
	if err != nil {
		return nil, fmt.Errorf("af_packet on %s: %w", cfg.Dev, err)
	}
	if cfg.Slots == 0 {
		cfg.Slots = ringSlots
	}
	a := link.Attrs()
	u := &Uplink{ifindex: a.Index, veth: link.Type() == "veth", noRing: cfg.NoRing, spec: spec{Dev: cfg.Dev, MTU: a.MTU, Trains: takesTrains(), All: cfg.All}}
	for range cfg.Queues {
		if err := u.open(&cfg); err != nil {
			u.Close()
			return nil, fmt.Errorf("af_packet on %s: %w", cfg.Dev, err)
		}
	}
	if cfg.All {
		if err := u.takeAll(cfg.Offload); err != nil {
			u.Close()
			return nil, fmt.Errorf("af_packet on %s: %w", cfg.Dev, err)
		}
		return u, nil
	}
	if fd, err := openFeeder(cfg.Dev, a.Index); err != nil {
		u.noFeeder = err.Error()
	} else {
		u.sockets, u.spec.Feeder = append(u.sockets, fd), true
	}
	if cfg.Offload {
		if err := u.offloadTunnels(); err != nil {
			u.noFlows = err.Error()
		}
	}
	return u, nil
}

// takesTrains reports whether the kernel supports UDP segmentation on packet sockets. It looks at the
// version, because the kernel has no query for it.
func takesTrains() bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var major, minor int
	if n, _ := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); n != 2 {
		return false
	}
	return major > 6 || major == 6 && minor >= 2
}

// open adds a packet socket, with a filter that drops everything. It adds a ring to the socket, unless
// the kernel has refused one before.
func (u *Uplink) open(cfg *Config) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		return errors.New("missing privilege: packet sockets need CAP_NET_RAW")
	}
	if err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	u.sockets = append(u.sockets, fd)
	if err := setFilter(fd, takeNothing); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	// PACKET_QDISC_BYPASS is not set: with it, the kernel would drop large frames that
	// the device cannot segment.
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1},
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1},
		{unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBytes},
		{unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, socketBytes},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("socket option %d: %w", o.name, err)
		}
	}
	if u.noRing == "" {
		if err := addRing(fd, cfg.Slots); err != nil {
			u.noRing = err.Error()
		}
	}
	if u.noRing == "" {
		u.spec.Rings, u.spec.Slots = u.spec.Rings+1, cfg.Slots
	} else {
		u.spec.Queues++
	}
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: u.ifindex}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if cfg.Queues > 1 {
		group := u.ifindex&0xffff | unix.PACKET_FANOUT_HASH<<16
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_FANOUT, group); err != nil {
			return fmt.Errorf("fanout: %w", err)
		}
	}
	return nil
}

// Spec returns the specification for Open in JSON. Open also needs duplicates of FDs.
func (u *Uplink) Spec() ([]byte, error) { return json.Marshal(u.spec) }

// Whole reports whether large tunnelled frames reach the device unsegmented. Otherwise the uplink sends such
// a frame as a train of datagrams, and reason says why.
func (u *Uplink) Whole() (yes bool, reason string) { return u.spec.Feeder, u.noFeeder }

// Ring reports whether all sockets have rings. If not, frames are read from some
// sockets with a system call each, and reason says why.
func (u *Uplink) Ring() (yes bool, reason string) { return u.spec.Queues == 0, u.noRing }

// FDs returns the descriptors for Open. The uplink owns them: pass duplicates to
// Open.
func (u *Uplink) FDs() []int {
	if u.flows != nil {
		return append(slices.Clone(u.sockets), u.flows.FDs()[:offload.CountFDs]...)
	}
	return u.sockets
}

// MTU returns the device's MTU at Setup or from the last SetMTU, in bytes without the
// Ethernet header.
func (u *Uplink) MTU() int { return u.spec.MTU }

// SetMTU changes the MTU in later results of Spec. mtu is in bytes without the Ethernet
// header.
func (u *Uplink) SetMTU(mtu int) { u.spec.MTU = mtu }

// Index returns the device's ifindex.
func (u *Uplink) Index() int { return u.ifindex }

// Veth reports whether the device is a veth.
func (u *Uplink) Veth() bool { return u.veth }

// SetEndpoints sets the tunnel endpoints whose datagrams the uplink receives: local addresses with UDP
// ports, or with port 0 for GRE. It skips unspecified addresses. If another socket is bound to an
// endpoint, such as that of Linux's vxlan device, SetEndpoints fails and the old endpoints stay.
func (u *Uplink) SetEndpoints(endpoints []netip.AddrPort) error {
	list, err := sorted(endpoints)
	if err != nil {
		return fmt.Errorf("af_packet on %s: %w", u.spec.Dev, err)
	}
	var sinks, fresh []int
	for _, e := range list {
		if at, have := slices.BinarySearchFunc(u.endpoints, e, netip.AddrPort.Compare); have {
			sinks = append(sinks, u.sinks[at])
			continue
		}
		fd, err := sink(e, u.ifindex)
		if err != nil {
			closeAll(fresh)
			return fmt.Errorf("af_packet on %s: %w", u.spec.Dev, err)
		}
		if u.flows != nil { // the kernel's flows would overtake merged datagrams, which they cannot take
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 0) // error ignored: a socket without UDP merges none
		}
		sinks, fresh = append(sinks, fd), append(fresh, fd)
	}
	filter := takeEndpoints(list)
	if u.flows != nil {
		err = u.offloadEndpoints(filter)
	} else {
		err = u.setFilters(filter)
	}
	if err != nil {
		closeAll(fresh)
		return fmt.Errorf("af_packet on %s: %w", u.spec.Dev, err)
	}
	for i, fd := range u.sinks {
		if _, keep := slices.BinarySearchFunc(list, u.endpoints[i], netip.AddrPort.Compare); !keep {
			unix.Close(fd)
		}
	}
	u.endpoints, u.sinks = list, sinks
	if u.flows == nil {
		u.spareStack(filter)
	}
	return nil
}

// setFilters attaches a classic BPF filter to all packet sockets.
func (u *Uplink) setFilters(filter []unix.SockFilter) error {
	for _, fd := range u.sockets[:u.spec.sockets()] {
		if err := setFilter(fd, filter); err != nil {
			return fmt.Errorf("filter: %w", err)
		}
	}
	return nil
}

// Close closes the descriptors of this process. The duplicates that the engine process has stay open.
func (u *Uplink) Close() {
	closeAll(u.sockets)
	closeAll(u.sinks)
	u.closeIngress()
	if u.flows != nil {
		u.flows.Close()
		u.flows = nil
	}
	u.sockets, u.sinks, u.endpoints = nil, nil, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// snapshot is the state of an uplink in JSON for the next control process. The next control process also gets
// the descriptors of FDs, then those of the sockets that the function sink has opened. Earlier versions
// refuse further descriptors.
type snapshot struct {
	Spec      spec             `json:"spec"`
	Why       string           `json:"why,omitempty"`
	NoRing    string           `json:"no_ring,omitempty"`
	NoFlows   string           `json:"no_flows,omitempty"`
	Index     int              `json:"ifindex"`
	Veth      bool             `json:"veth,omitempty"`
	Endpoints []netip.AddrPort `json:"endpoints"`
}

// Snapshot returns the state and the descriptors of the uplink. From them, Restore makes the same uplink in
// the next control process. The uplink still owns the descriptors.
func (u *Uplink) Snapshot() (blob []byte, fds []int, err error) {
	blob, err = json.Marshal(snapshot{Spec: u.spec, Why: u.noFeeder, NoRing: u.noRing, NoFlows: u.noFlows, Index: u.ifindex, Veth: u.veth, Endpoints: u.endpoints})
	return blob, slices.Concat(u.FDs(), u.sinks), err
}

// Restore makes an uplink from the Snapshot of another process. fds are the descriptors of Snapshot
// and, after them, those of IngressFDs, which may be missing. Restore owns the descriptors, even if it
// fails.
func Restore(blob []byte, fds []int) (*Uplink, error) {
	var s snapshot
	err := json.Unmarshal(blob, &s)
	if err == nil && (s.Spec.sockets() < 1 || len(fds) < s.Spec.fds()+len(s.Endpoints) || len(fds) > s.Spec.fds()+len(s.Endpoints)+maxExtras) {
		err = fmt.Errorf("%d descriptors for %d queues and %d endpoints", len(fds), s.Spec.sockets(), len(s.Endpoints))
	}
	if err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("af_packet: snapshot: %w", err)
	}
	n, sinks := s.Spec.fds(), s.Spec.fds()+len(s.Endpoints)
	u := &Uplink{spec: s.Spec, noFeeder: s.Why, noRing: s.NoRing, noFlows: s.NoFlows, ifindex: s.Index, veth: s.Veth, endpoints: s.Endpoints,
		sockets: slices.Clone(fds[:n]), sinks: slices.Clone(fds[n:sinks])}
	extras := fds[sinks:]
	if s.Spec.Offload != 0 {
		counts := u.sockets[n-offload.CountFDs:]
		u.sockets = u.sockets[:n-offload.CountFDs]
		if err := u.adoptFlows(counts, extras); err != nil {
			u.Close()
			return nil, fmt.Errorf("af_packet on %s: %w", s.Spec.Dev, err)
		}
		return u, nil
	}
	if len(extras) > 0 {
		if u.ingress, err = link.NewFromFD(extras[0]); err != nil {
			u.Close()
			return nil, fmt.Errorf("af_packet on %s: ingress program: %w", s.Spec.Dev, err)
		}
	}
	return u, nil
}

// maxExtras is the largest number of descriptors that IngressFDs returns.
const maxExtras = 1 + offload.FDs - offload.CountFDs

// adoptFlows makes u.flows, the table of flows that the kernel forwards, from the table's descriptors. counts
// has the descriptors of its counters, extras those of IngressFDs. adoptFlows owns the descriptors, even if
// it fails.
func (u *Uplink) adoptFlows(counts, extras []int) (err error) {
	if len(extras) != maxExtras || u.spec.Offload != offload.Version {
		closeAll(counts)
		closeAll(extras)
		return errors.New("the flows in the kernel are incomplete or of another version")
	}
	if u.flows, err = offload.Adopt(slices.Concat(counts, extras[1:]), !u.spec.All); err != nil {
		closeAll(extras[:1])
		return err
	}
	u.ingress, err = link.NewFromFD(extras[0])
	return err
}
