// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"fmt"
	"net/netip"
	"strings"
)

// maxRemotes limits the remote endpoints of a tunnel port, because a broadcast is copied to each. Longer
// lists are refused.
const maxRemotes = 256

func addresses(value string) string {
	seen := map[netip.Addr]bool{}
	for word := range strings.SplitSeq(value, ",") {
		if expected := address(word); expected != "" {
			return expected + ", or several with commas between"
		}
		seen[netip.MustParseAddr(word)] = true
	}
	switch n := strings.Count(value, ",") + 1; {
	case n > maxRemotes:
		return fmt.Sprintf("at most %d addresses", maxRemotes)
	case n > len(seen):
		return "each address once"
	}
	return ""
}

func remotes(value string) string {
	if a, err := netip.ParseAddr(value); err == nil && a.IsMulticast() && a.Zone() == "" && !a.Is4In6() {
		return ""
	}
	if expected := addresses(value); expected != "" {
		return expected + ", or a multicast group"
	}
	return ""
}

// parseRemotes parses the value of remote=, which is already checked. A single unicast address is
// returned as "unicast", without a list. Otherwise the list has all addresses, and a broadcast goes to
// each of them.
func parseRemotes(value string) (unicast netip.Addr, list []netip.Addr) {
	words := strings.Split(value, ",")
	if unicast = netip.MustParseAddr(words[0]); len(words) == 1 && !unicast.IsMulticast() {
		return unicast, nil
	}
	for _, w := range words {
		list = append(list, netip.MustParseAddr(w))
	}
	return netip.Addr{}, list
}

// groupOf returns the multicast group of a tunnel port, or an invalid address if the
// port has none.
func groupOf(values map[string]string) netip.Addr {
	if a, err := netip.ParseAddr(values["remote"]); err == nil && a.IsMulticast() {
		return a
	}
	return netip.Addr{}
}
