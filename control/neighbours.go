package control

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

type neighbourKey struct {
	index int // of the link
	addr  netip.Addr
}

// neighbour is an entry of the kernel's neighbour table (ARP, ND).
type neighbour struct {
	mac   [6]byte
	state int // NUD_*, 0: no entry
}

func (n neighbour) hopState() hopState {
	switch n.state {
	case netlink.NUD_REACHABLE, netlink.NUD_PERMANENT, netlink.NUD_NOARP:
		return hopReady
	case netlink.NUD_DELAY, netlink.NUD_PROBE: // the kernel is at it, and uses the address meanwhile
		return hopReady
	case netlink.NUD_STALE:
		return hopStale
	case netlink.NUD_FAILED:
		return hopFailed
	}
	return hopPending
}

func (u *underlay) applyNeighbour(update netlink.NeighUpdate) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.setNeighbour(&update.Neigh, update.Type == unix.RTM_NEWNEIGH)
}

func (u *underlay) setNeighbour(n *netlink.Neigh, present bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok || n.Family == unix.AF_BRIDGE || n.Flags&netlink.NTF_PROXY != 0 {
		return
	}
	key := neighbourKey{n.LinkIndex, addr.Unmap()}
	if !present {
		delete(u.neighbours, key)
		return
	}
	entry := neighbour{state: n.State}
	copy(entry.mac[:], n.HardwareAddr)
	u.neighbours[key] = entry
}

// discard is the port of probes that need a datagram (RFC 863).
const discard = 9

// probe has the kernel resolve, or confirm, a neighbour, as if it had a frame
// for it: NTF_USE starts its own state machine (RFC 4861 section 7.3 for ND).
// On a link without a link-local address the kernel solicits only for a frame
// that has a source address: there it is given one.
func (u *underlay) probe(h *hop) error {
	if h.next.Is6() && u.solicitor >= 0 && !u.hasLinkLocal(h.index) {
		to := &unix.SockaddrInet6{Port: discard, Addr: h.next.As16()}
		if err := unix.Sendto(u.solicitor, nil, unix.MSG_DONTWAIT, to); err == nil {
			return nil
		}
	}
	return u.handle.NeighSet(&netlink.Neigh{
		LinkIndex: h.index,
		Family:    familyOf(h.next),
		Flags:     netlink.NTF_USE,
		IP:        h.next.AsSlice(),
	})
}

func (u *underlay) hasLinkLocal(index int) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, a := range u.addresses[index] {
		if a.Is6() && a.IsLinkLocalUnicast() {
			return true
		}
	}
	return false
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}
