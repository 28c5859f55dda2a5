// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

type neighbourKey struct {
	index int // index of the link
	addr  netip.Addr
}

// neighbour is an entry of the kernel's neighbour table (ARP, ND).
type neighbour struct {
	mac   [6]byte
	state int // NUD_*; 0: no entry
}

func (n neighbour) hopState() hopState {
	switch n.state {
	case netlink.NUD_REACHABLE, netlink.NUD_PERMANENT, netlink.NUD_NOARP:
		return hopReady
	// in the states DELAY and PROBE, the kernel still uses the neighbour's address
	case netlink.NUD_DELAY, netlink.NUD_PROBE:
		return hopReady
	case netlink.NUD_STALE:
		return hopStale
	case netlink.NUD_FAILED:
		return hopFailed
	}
	return hopPending
}

func (k *Kernel) applyNeighbour(update netlink.NeighUpdate) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.setNeighbour(&update.Neigh, update.Type == unix.RTM_NEWNEIGH)
}

func (k *Kernel) setNeighbour(n *netlink.Neigh, present bool) {
	addr, ok := netip.AddrFromSlice(n.IP)
	if !ok || n.Family == unix.AF_BRIDGE || n.Flags&netlink.NTF_PROXY != 0 {
		return
	}
	key := neighbourKey{n.LinkIndex, addr.Unmap()}
	if !present {
		delete(k.neighbours, key)
		return
	}
	entry := neighbour{state: n.State}
	copy(entry.mac[:], n.HardwareAddr)
	k.neighbours[key] = entry
}

// discard is the UDP destination port of a datagram that probes a neighbour (RFC 863).
const discard = 9

// probe makes the kernel resolve or confirm a neighbour, with the netlink flag NTF_USE (RFC
// 4861 section 7.3). A link without a link-local IPv6 address needs a datagram instead, because
// the kernel takes the source address of its solicitation from the datagram.
func (k *Kernel) probe(h *hop) error {
	if h.next.Is6() && k.solicitor >= 0 && !k.hasLinkLocal(h.index) {
		to := &unix.SockaddrInet6{Port: discard, Addr: h.next.As16()}
		if err := unix.Sendto(k.solicitor, nil, unix.MSG_DONTWAIT, to); err == nil {
			return nil
		}
	}
	return k.handle.NeighSet(&netlink.Neigh{
		LinkIndex: h.index,
		Family:    familyOf(h.next),
		Flags:     netlink.NTF_USE,
		IP:        h.next.AsSlice(),
	})
}

func (k *Kernel) hasLinkLocal(index int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, a := range k.addresses[index] {
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
