// SPDX-License-Identifier: Apache-2.0

// Package underlay follows the network that tunnels cross, as the kernel has it: links,
// addresses, routes and neighbours. From this state it makes the templates of outer headers for
// the tunnels.
//
// Kernel mirrors links, addresses and neighbours under Kernel.mu. Templates owns the
// workers' templates under Templates.mu, which is taken before Kernel.mu. Both locks
// are taken after the pipeline's lock and before the lock of the command rings.
package underlay

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft/control/loop"
	"weft/internal/netspace"
)

// Kernel is the network state that the kernel has for one network namespace. Links,
// addresses and neighbours are mirrored; routes are queried. With this state, the
// switch sends as the kernel would.
type Kernel struct {
	handle    *netlink.Handle
	ethtool   *ethtool.Ethtool // socket of the namespace
	namespace netns.NsHandle
	log       *slog.Logger
	solicitor int // UDP socket whose datagrams make the kernel probe IPv6 neighbours; -1: no IPv6

	mu    sync.Mutex
	links map[int]link // key: index
	// addresses has the addresses by link index. The event of an address may arrive before the
	// event of its link.
	addresses  map[int][]netip.Addr
	neighbours map[neighbourKey]neighbour

	routeEvents atomic.Uint32 // number of events that may have changed routes
	changed     chan struct{} // signals any change to Templates.Follow
	// Moved gets a message when links or addresses have changed.
	Moved chan struct{}
	// Linked gets a message when a link has changed.
	Linked  chan struct{}
	done    chan struct{}
	stopped sync.WaitGroup
}

// link is the copy of a network device's state in the kernel.
type link struct {
	name string
	mac  [6]byte
	mtu  int // largest IP packet in bytes
	up   bool
	// carrier is false while the device has no link to its peer.
	carrier  bool
	settings Link
}

// subscriptionBuffer is the buffer of a netlink socket in bytes. If the buffer
// overflows, Kernel reads everything again.
const subscriptionBuffer = 1 << 20

// Open returns a Kernel that follows the calling thread's network namespace until Close.
func Open(log *slog.Logger) (*Kernel, error) {
	namespace, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	handle, err := netspace.Route(namespace)
	if err != nil {
		namespace.Close()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	tool, err := ethtool.NewEthtool()
	if err != nil {
		handle.Close()
		namespace.Close()
		return nil, fmt.Errorf("ethtool: %w", err)
	}
	k := &Kernel{
		handle: handle, ethtool: tool, namespace: namespace, log: log,
		links: map[int]link{}, addresses: map[int][]netip.Addr{}, neighbours: map[neighbourKey]neighbour{},
		changed: make(chan struct{}, 1), Moved: make(chan struct{}, 1), Linked: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if k.solicitor, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		k.solicitor = -1
	}
	events, err := k.subscribe()
	if err == nil {
		err = k.read()
	}
	if err != nil {
		close(k.done)
		k.release()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	k.stopped.Add(1)
	go k.follow(events)
	return k, nil
}

func (k *Kernel) Close() {
	close(k.done)
	k.stopped.Wait()
	k.release()
}

func (k *Kernel) release() {
	k.handle.Close()
	k.ethtool.Close()
	k.namespace.Close()
	if k.solicitor >= 0 {
		unix.Close(k.solicitor)
	}
}

// events has the netlink subscriptions. Closing the channel stop ends them. The channel
// broken gets an error when events were lost.
type events struct {
	links      chan netlink.LinkUpdate
	addresses  chan netlink.AddrUpdate
	routes     chan netlink.RouteUpdate
	neighbours chan netlink.NeighUpdate
	broken     chan error
	stop       chan struct{}
}

func (k *Kernel) subscribe() (*events, error) {
	e := &events{
		links: make(chan netlink.LinkUpdate, 64), addresses: make(chan netlink.AddrUpdate, 64),
		routes: make(chan netlink.RouteUpdate, 64), neighbours: make(chan netlink.NeighUpdate, 64),
		broken: make(chan error, 1), stop: make(chan struct{}),
	}
	broken := func(err error) {
		select {
		case e.broken <- err:
		default:
		}
	}
	ns := &k.namespace
	if netspace.Here(k.namespace) {
		ns = nil // subscribe in the thread's namespace
	}
	err := netlink.LinkSubscribeWithOptions(e.links, e.stop, netlink.LinkSubscribeOptions{
		Namespace: ns, ErrorCallback: broken, ReceiveBufferSize: subscriptionBuffer})
	if err == nil {
		err = netlink.AddrSubscribeWithOptions(e.addresses, e.stop, netlink.AddrSubscribeOptions{
			Namespace: ns, ErrorCallback: broken, ReceiveBufferSize: subscriptionBuffer})
	}
	if err == nil {
		err = netlink.RouteSubscribeWithOptions(e.routes, e.stop, netlink.RouteSubscribeOptions{
			Namespace: ns, ErrorCallback: broken, ReceiveBufferSize: subscriptionBuffer})
	}
	if err == nil {
		err = netlink.NeighSubscribeWithOptions(e.neighbours, e.stop, netlink.NeighSubscribeOptions{
			Namespace: ns, ErrorCallback: broken, ReceiveBufferSize: subscriptionBuffer})
	}
	if err != nil {
		close(e.stop)
		return nil, err
	}
	return e, nil
}

// follow applies events to the mirror until Close. After a lost event it subscribes anew and
// reads the whole state again.
func (k *Kernel) follow(e *events) {
	defer k.stopped.Done()
	for {
		again := k.apply(e)
		close(e.stop)
		e.drain()
		if !again {
			return
		}
		for {
			select {
			case <-k.done:
				return
			case <-time.After(100 * time.Millisecond):
			}
			var err error
			if e, err = k.subscribe(); err == nil {
				if err = k.read(); err == nil {
					break
				}
				close(e.stop)
				e.drain()
			}
			k.log.Warn("cannot read the state over netlink, trying again", "error", err)
		}
		k.routeEvents.Add(1)
		loop.Notify(k.changed)
		loop.Notify(k.Moved)
		loop.Notify(k.Linked)
	}
}

func (e *events) drain() {
	go func() {
		for range e.links {
		}
	}()
	go func() {
		for range e.addresses {
		}
	}()
	go func() {
		for range e.routes {
		}
	}()
	go func() {
		for range e.neighbours {
		}
	}()
}

// apply applies events to the mirror. It returns true when an event was lost, and false
// after Close.
func (k *Kernel) apply(e *events) (lost bool) {
	for {
		select {
		case <-k.done:
			return false
		case err := <-e.broken:
			k.log.Warn("netlink events lost, reading the whole state again", "error", err)
			return true
		case update, ok := <-e.links:
			if !ok {
				return true
			}
			k.applyLink(update)
			k.routeEvents.Add(1)
			loop.Notify(k.Moved)
			loop.Notify(k.Linked)
		case update, ok := <-e.addresses:
			if !ok {
				return true
			}
			k.applyAddress(update)
			loop.Notify(k.Moved)
		case _, ok := <-e.routes:
			if !ok {
				return true
			}
			k.routeEvents.Add(1)
		case update, ok := <-e.neighbours:
			if !ok {
				return true
			}
			k.applyNeighbour(update)
		}
		loop.Notify(k.changed)
	}
}

func (k *Kernel) read() error {
	links, err := k.handle.LinkList()
	if err != nil {
		return err
	}
	addresses, err := k.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	neighbours, err := k.handle.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	settings := map[int]Link{}
	for _, l := range links {
		settings[l.Attrs().Index] = k.settingsOf(l.Attrs())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.links)
	clear(k.addresses)
	clear(k.neighbours)
	for _, l := range links {
		k.setLink(l.Attrs(), settings[l.Attrs().Index])
	}
	for _, a := range addresses {
		k.setAddress(a.LinkIndex, a.IP, true)
	}
	for i := range neighbours {
		k.setNeighbour(&neighbours[i], true)
	}
	return nil
}

func (k *Kernel) applyLink(update netlink.LinkUpdate) {
	settings := k.settingsOf(update.Attrs())
	k.mu.Lock()
	defer k.mu.Unlock()
	if update.Header.Type == unix.RTM_DELLINK {
		delete(k.links, update.Attrs().Index)
		delete(k.addresses, update.Attrs().Index)
		return
	}
	k.setLink(update.Attrs(), settings)
}

// settingsOf asks the device's driver for the link's settings. The caller does not hold k.mu,
// because the kernel may let the question wait for a change of any device.
func (k *Kernel) settingsOf(a *netlink.LinkAttrs) Link {
	l := linkSettings(k.ethtool, a.Name)
	copy(l.MAC[:], a.HardwareAddr)
	return l
}

func (k *Kernel) setLink(a *netlink.LinkAttrs, settings Link) {
	l := link{name: a.Name, mtu: a.MTU, up: a.Flags&net.FlagUp != 0, carrier: a.RawFlags&unix.IFF_LOWER_UP != 0, settings: settings}
	copy(l.mac[:], a.HardwareAddr)
	k.links[a.Index] = l
}

func (k *Kernel) applyAddress(update netlink.AddrUpdate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.setAddress(update.LinkIndex, update.LinkAddress.IP, update.NewAddr)
}

func (k *Kernel) setAddress(index int, ip net.IP, present bool) {
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return
	}
	addr = addr.Unmap()
	var kept []netip.Addr
	for _, a := range k.addresses[index] {
		if a != addr {
			kept = append(kept, a)
		}
	}
	if present {
		kept = append(kept, addr)
	}
	if len(kept) == 0 {
		delete(k.addresses, index)
		return
	}
	k.addresses[index] = kept
}

// AddressesOf returns the addresses of a link. The caller must not modify the slice.
func (k *Kernel) AddressesOf(name string) []netip.Addr {
	k.mu.Lock()
	defer k.mu.Unlock()
	for index, l := range k.links {
		if l.name == name {
			return k.addresses[index]
		}
	}
	return nil
}

// hop is the path to a tunnel's remote through one next hop. It has those fields of the outer header that
// depend on the next hop.
type hop struct {
	device         string
	local, next    netip.Addr
	srcMAC, dstMAC [6]byte
	mtu, routeMTU  int // mtu: largest IP packet in bytes; routeMTU: MTU attribute of the route, or 0
	index          int
	carrier        bool // the device has carrier
	state          hopState
	reason         string // reason of a state other than hopReady
}

type hopState uint8

const (
	hopNoRoute hopState = iota
	hopPending          // the neighbour's MAC address is unknown
	hopFailed           // the neighbour did not answer
	hopReady
	hopStale // the MAC address is usable, but needs a probe
)

// resolve asks the kernel for the path from local to remote. If local is invalid, the
// kernel chooses the local address. If device is not empty, the path uses this device.
func (k *Kernel) resolve(local, remote netip.Addr, device string) hop {
	options := &netlink.RouteGetOptions{Oif: device}
	if local.IsValid() {
		options.SrcAddr = local.AsSlice()
	}
	routes, err := k.handle.RouteGetWithOptions(remote.AsSlice(), options)
	if err != nil || len(routes) == 0 {
		return hop{reason: fmt.Sprintf("no route to %s: %v", remote, err)}
	}
	r := routes[0]
	h := hop{index: r.LinkIndex, local: local, next: remote}
	if remote.IsMulticast() {
		return k.multicastHop(h, &r)
	}
	switch {
	case r.Type == unix.RTN_LOCAL:
		return hop{reason: fmt.Sprintf("%s is an address of this host", remote)}
	case r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_UNSPEC:
		return hop{reason: fmt.Sprintf("the route to %s is of type %d, expected unicast", remote, r.Type)}
	}
	if gw, ok := netip.AddrFromSlice(r.Gw); ok {
		h.next = gw.Unmap()
	} else if via, ok := r.Via.(*netlink.Via); ok {
		if gw, ok := netip.AddrFromSlice(via.Addr); ok {
			h.next = gw.Unmap()
		}
	}
	if src, ok := netip.AddrFromSlice(r.Src); ok && !h.local.IsValid() {
		h.local = src.Unmap()
	}
	if !h.local.IsValid() {
		return hop{reason: fmt.Sprintf("no source address for %s", remote)}
	}
	return k.neighbourOf(h, r.MTU)
}

func (k *Kernel) neighbourOf(h hop, routeMTU int) hop {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, known := k.links[h.index]
	if !known {
		h.reason = fmt.Sprintf("the route leaves through device %d, which is gone", h.index)
		return h
	}
	h.device, h.srcMAC, h.mtu, h.routeMTU, h.carrier = l.name, l.mac, l.mtu, routeMTU, l.carrier
	if routeMTU > 0 {
		h.mtu = min(h.mtu, routeMTU)
	}
	if !l.up {
		h.reason = fmt.Sprintf("device %s is down", l.name)
		return h
	}
	n := k.neighbours[neighbourKey{h.index, h.next}]
	h.dstMAC = n.mac
	h.state = n.hopState()
	switch h.state {
	case hopPending:
		h.reason = fmt.Sprintf("waiting for %s on %s", h.next, l.name)
	case hopFailed:
		h.reason = fmt.Sprintf("%s does not answer on %s", h.next, l.name)
	}
	return h
}
