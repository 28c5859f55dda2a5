package control

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weft/control/loop"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// underlay is the kernel's view of the network that tunnels cross, of the
// namespace it was made in: routes are asked for, links, addresses and
// neighbours are mirrored and followed by subscription. Nothing here is the
// switch's own: it does what the kernel would do.
type underlay struct {
	handle    *netlink.Handle
	namespace netns.NsHandle
	log       *slog.Logger
	solicitor int // UDP socket for IPv6 probes, -1: no IPv6 here

	mu    sync.Mutex
	links map[int]link // by index
	// addresses are by the index of their link too: which of the two is heard of first
	// is a matter of chance.
	addresses  map[int][]netip.Addr
	neighbours map[neighbourKey]neighbour

	routes  atomic.Uint32 // one more whenever routes may have changed
	changed chan struct{} // something above, or a route, is not what it was
	moved   chan struct{} // a link or address is not
	done    chan struct{}
	stopped sync.WaitGroup
}

// link is a device of the kernel's.
type link struct {
	name string
	mac  [6]byte
	mtu  int // bytes of an IP packet
	up   bool
}

// subscriptionBuffer is the size of a netlink socket's buffer in bytes. Where
// it overflows, everything is read anew.
const subscriptionBuffer = 1 << 20

// newUnderlay opens the namespace of the calling thread and begins to follow it.
func newUnderlay(log *slog.Logger) (*underlay, error) {
	namespace, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	handle, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		namespace.Close()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	u := &underlay{
		handle: handle, namespace: namespace, log: log,
		links: map[int]link{}, addresses: map[int][]netip.Addr{}, neighbours: map[neighbourKey]neighbour{},
		changed: make(chan struct{}, 1), moved: make(chan struct{}, 1), done: make(chan struct{}),
	}
	if u.solicitor, err = unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		u.solicitor = -1
	}
	events, err := u.subscribe()
	if err == nil {
		err = u.read()
	}
	if err != nil {
		close(u.done)
		u.release()
		return nil, fmt.Errorf("netlink: %w", err)
	}
	u.stopped.Add(1)
	go u.follow(events)
	return u, nil
}

func (u *underlay) close() {
	close(u.done)
	u.stopped.Wait()
	u.release()
}

func (u *underlay) release() {
	u.handle.Close()
	u.namespace.Close()
	if u.solicitor >= 0 {
		unix.Close(u.solicitor)
	}
}

// events are the subscriptions; stop ends them. broken is written when one of
// them lost messages.
type events struct {
	links      chan netlink.LinkUpdate
	addresses  chan netlink.AddrUpdate
	routes     chan netlink.RouteUpdate
	neighbours chan netlink.NeighUpdate
	broken     chan error
	stop       chan struct{}
}

func (u *underlay) subscribe() (*events, error) {
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
	ns := u.namespace
	err := netlink.LinkSubscribeWithOptions(e.links, e.stop, netlink.LinkSubscribeOptions{
		Namespace: &ns, ErrorCallback: broken, ReceiveBufferSize: subscriptionBuffer})
	if err == nil {
		err = netlink.AddrSubscribeWithOptions(e.addresses, e.stop, netlink.AddrSubscribeOptions{
			Namespace: &ns, ErrorCallback: broken, ReceiveBufferSize: subscriptionBuffer})
	}
	if err == nil {
		err = netlink.RouteSubscribeWithOptions(e.routes, e.stop, netlink.RouteSubscribeOptions{
			Namespace: &ns, ErrorCallback: broken, ReceiveBufferSize: subscriptionBuffer})
	}
	if err == nil {
		err = netlink.NeighSubscribeWithOptions(e.neighbours, e.stop, netlink.NeighSubscribeOptions{
			Namespace: &ns, ErrorCallback: broken, ReceiveBufferSize: subscriptionBuffer})
	}
	if err != nil {
		close(e.stop)
		return nil, err
	}
	return e, nil
}

// follow applies events until close. When one is lost, it starts over.
func (u *underlay) follow(e *events) {
	defer u.stopped.Done()
	for {
		again := u.apply(e)
		close(e.stop)
		e.drain()
		if !again {
			return
		}
		for {
			select {
			case <-u.done:
				return
			case <-time.After(100 * time.Millisecond):
			}
			var err error
			if e, err = u.subscribe(); err == nil {
				if err = u.read(); err == nil {
					break
				}
				close(e.stop)
				e.drain()
			}
			u.log.Warn("netlink cannot be read, trying again", "error", err)
		}
		u.routes.Add(1)
		loop.Notify(u.changed)
		loop.Notify(u.moved)
	}
}

// drain empties the channels until their senders have gone.
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

// apply handles events one by one; it reports true if some were lost.
func (u *underlay) apply(e *events) (lost bool) {
	for {
		select {
		case <-u.done:
			return false
		case err := <-e.broken:
			u.log.Warn("netlink events lost, reading all anew", "error", err)
			return true
		case update, ok := <-e.links:
			if !ok {
				return true
			}
			u.applyLink(update)
			u.routes.Add(1)
			loop.Notify(u.moved)
		case update, ok := <-e.addresses:
			if !ok {
				return true
			}
			u.applyAddress(update)
			loop.Notify(u.moved)
		case _, ok := <-e.routes:
			if !ok {
				return true
			}
			u.routes.Add(1)
		case update, ok := <-e.neighbours:
			if !ok {
				return true
			}
			u.applyNeighbour(update)
		}
		loop.Notify(u.changed)
	}
}

// read takes everything there is in place of what was known.
func (u *underlay) read() error {
	links, err := u.handle.LinkList()
	if err != nil {
		return err
	}
	addresses, err := u.handle.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	neighbours, err := u.handle.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	clear(u.links)
	clear(u.addresses)
	clear(u.neighbours)
	for _, l := range links {
		u.setLink(l.Attrs())
	}
	for _, a := range addresses {
		u.setAddress(a.LinkIndex, a.IP, true)
	}
	for i := range neighbours {
		u.setNeighbour(&neighbours[i], true)
	}
	return nil
}

func (u *underlay) applyLink(update netlink.LinkUpdate) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if update.Header.Type == unix.RTM_DELLINK {
		delete(u.links, update.Attrs().Index)
		delete(u.addresses, update.Attrs().Index)
		return
	}
	u.setLink(update.Attrs())
}

func (u *underlay) setLink(a *netlink.LinkAttrs) {
	l := link{name: a.Name, mtu: a.MTU, up: a.Flags&net.FlagUp != 0}
	copy(l.mac[:], a.HardwareAddr)
	u.links[a.Index] = l
}

func (u *underlay) applyAddress(update netlink.AddrUpdate) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.setAddress(update.LinkIndex, update.LinkAddress.IP, update.NewAddr)
}

func (u *underlay) setAddress(index int, ip net.IP, present bool) {
	addr, ok := netip.AddrFromSlice(ip)
	if !ok {
		return
	}
	addr = addr.Unmap()
	var kept []netip.Addr
	for _, a := range u.addresses[index] {
		if a != addr {
			kept = append(kept, a)
		}
	}
	if present {
		kept = append(kept, addr)
	}
	if len(kept) == 0 {
		delete(u.addresses, index)
		return
	}
	u.addresses[index] = kept
}

// addressesOf are those of the link of that name; the caller does not change them.
func (u *underlay) addressesOf(name string) []netip.Addr {
	u.mu.Lock()
	defer u.mu.Unlock()
	for index, l := range u.links {
		if l.name == name {
			return u.addresses[index]
		}
	}
	return nil
}

// hop is what an outer header needs to know of the way to a remote.
type hop struct {
	device         string
	local, next    netip.Addr
	srcMAC, dstMAC [6]byte
	mtu, routeMTU  int // of the IP packet, in bytes; the route's own, 0: none
	index          int
	state          hopState
	why            string // for the operator, where it is not hopReady
}

type hopState uint8

const (
	hopNoRoute hopState = iota
	hopPending          // the next hop's neighbour is not known yet
	hopFailed           // it did not answer
	hopReady
	hopStale // ready, but the kernel wants to hear that it is in use
)

// resolve asks the kernel for the way from local (invalid: choose) to remote,
// through a device if one is named.
func (u *underlay) resolve(local, remote netip.Addr, device string) hop {
	options := &netlink.RouteGetOptions{Oif: device}
	if local.IsValid() {
		options.SrcAddr = local.AsSlice()
	}
	routes, err := u.handle.RouteGetWithOptions(remote.AsSlice(), options)
	if err != nil || len(routes) == 0 {
		return hop{why: fmt.Sprintf("no route to %s: %v", remote, err)}
	}
	r := routes[0]
	h := hop{index: r.LinkIndex, local: local, next: remote}
	if remote.IsMulticast() {
		return u.groupHop(h, &r)
	}
	switch {
	case r.Type == unix.RTN_LOCAL:
		return hop{why: fmt.Sprintf("%s is an address of this host", remote)}
	case r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_UNSPEC:
		return hop{why: fmt.Sprintf("the route to %s is of type %d, expected unicast", remote, r.Type)}
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
		return hop{why: fmt.Sprintf("no source address for %s", remote)}
	}
	return u.neighbourOf(h, r.MTU)
}

// neighbourOf completes the hop with its device and neighbour.
func (u *underlay) neighbourOf(h hop, routeMTU int) hop {
	u.mu.Lock()
	defer u.mu.Unlock()
	l, known := u.links[h.index]
	if !known {
		h.why = fmt.Sprintf("the route leaves through device %d, which is gone", h.index)
		return h
	}
	h.device, h.srcMAC, h.mtu, h.routeMTU = l.name, l.mac, l.mtu, routeMTU
	if routeMTU > 0 {
		h.mtu = min(h.mtu, routeMTU)
	}
	if !l.up {
		h.why = fmt.Sprintf("device %s is down", l.name)
		return h
	}
	n := u.neighbours[neighbourKey{h.index, h.next}]
	h.dstMAC = n.mac
	h.state = n.hopState()
	switch h.state {
	case hopPending:
		h.why = fmt.Sprintf("waiting for %s on %s", h.next, l.name)
	case hopFailed:
		h.why = fmt.Sprintf("%s does not answer on %s", h.next, l.name)
	}
	return h
}
