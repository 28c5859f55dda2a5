// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"net"
	"net/netip"

	"weft/central/wire"
)

// Limits of the declaration. The store refuses a request that exceeds one of them.
const (
	// MaxName limits ids and names in bytes, like a certificate's common name (RFC
	// 5280, ub-common-name).
	MaxName = 64
	// maxAddresses limits the IP addresses of a port.
	maxAddresses = 64
	// maxChanges limits the changes in a request.
	maxChanges = 200_000
	// maxVNI is the largest VNI, which has 24 bits (RFC 7348 section 5).
	maxVNI = 1<<24 - 1
	// MTU of a network in bytes of an IP packet; RFC 791 requires 68
	minMTU = 68
	maxMTU = 65535
)

// checkWord returns a *Refused if an id or a name is empty, too long or has wrong characters.
func checkWord(subject, word string) error {
	if word == "" {
		return refusedf("%s is empty; give 1 to %d letters, digits or any of . _ : @ + -", subject, MaxName)
	}
	if len(word) > MaxName {
		return refusedf("%s %.16q... has %d characters; expected at most %d", subject, word, len(word), MaxName)
	}
	for _, c := range []byte(word) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			c == '.' || c == '_' || c == ':' || c == '@' || c == '+' || c == '-') {
			return refusedf("%s %q has the character %q; expected letters, digits or any of . _ : @ + -", subject, word, c)
		}
	}
	return nil
}

func checkNames(subject, id, name string) error {
	if err := checkWord("the id of "+subject, id); err != nil {
		return err
	}
	return checkWord(fmt.Sprintf("the name of %s %s", subject, id), name)
}

func checkNet(n *wire.Net) error {
	if err := checkNames("network", n.Id, n.Name); err != nil {
		return err
	}
	if n.Vni < 1 || n.Vni > maxVNI {
		return refusedf("network %s: vni %d: expected 1 to %d", n.Name, n.Vni, maxVNI)
	}
	if n.Mtu != 0 && (n.Mtu < minMTU || n.Mtu > maxMTU) {
		return refusedf("network %s: mtu %d: expected %d to %d, or 0 for the underlay's", n.Name, n.Mtu, minMTU, maxMTU)
	}
	if problem := n.GetAddressing().Problem(); problem != "" {
		return refusedf("network %s: %s", n.Name, problem)
	}
	return nil
}

func checkHost(h *wire.Host) error {
	if err := checkNames("host", h.Id, h.Name); err != nil {
		return err
	}
	if reason := wrongAddress(h.Endpoint); reason != "" {
		return refusedf("host %s: endpoint: %s", h.Name, reason)
	}
	return nil
}

func checkPort(p *wire.Port) error {
	if err := checkNames("port", p.Id, p.Name); err != nil {
		return err
	}
	if err := checkWord(fmt.Sprintf("port %s: the id of its network", p.Name), p.Net); err != nil {
		return err
	}
	if reason := wrongMAC(p.Mac); reason != "" {
		return refusedf("port %s: mac: %s", p.Name, reason)
	}
	if len(p.Addresses) > maxAddresses {
		return refusedf("port %s has %d addresses; expected at most %d", p.Name, len(p.Addresses), maxAddresses)
	}
	for i, a := range p.Addresses {
		if reason := wrongAddress(a); reason != "" {
			return refusedf("port %s: address: %s", p.Name, reason)
		}
		for _, b := range p.Addresses[:i] {
			if string(a) == string(b) {
				return refusedf("port %s: address %s is there twice; give it once", p.Name, addressText(a))
			}
		}
	}
	for _, host := range []string{p.Host, p.MoveTo} {
		if host != "" {
			if err := checkWord(fmt.Sprintf("port %s: the id of a host", p.Name), host); err != nil {
				return err
			}
		}
	}
	if p.MoveTo != "" && p.Host == "" {
		return refusedf("port %s: move_to %s without a host; name the present host too, or neither", p.Name, p.MoveTo)
	}
	return checkPortGroups(p)
}

func wrongMAC(mac []byte) string {
	switch {
	case len(mac) != 6:
		return fmt.Sprintf("%d bytes; expected 6", len(mac))
	case mac[0]&1 != 0:
		return fmt.Sprintf("%s is a group's; expected a unicast address", net.HardwareAddr(mac))
	case string(mac) == "\x00\x00\x00\x00\x00\x00":
		return "00:00:00:00:00:00 is nobody's; expected a unicast address"
	}
	return ""
}

// wrongAddress returns the reason why b cannot be the IP address of a machine, or "" if it can.
func wrongAddress(b []byte) string {
	a, ok := netip.AddrFromSlice(b)
	switch {
	case !ok:
		return fmt.Sprintf("%d bytes; expected 4 (IPv4) or 16 (IPv6)", len(b))
	case a.Is4In6():
		return fmt.Sprintf("%s is an IPv4 address in 16 bytes; give it in 4", a)
	case a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return fmt.Sprintf("%s: expected the address of one machine", a)
	}
	return ""
}

func addressText(b []byte) string {
	if a, ok := netip.AddrFromSlice(b); ok {
		return a.String()
	}
	return fmt.Sprintf("%x", b)
}
