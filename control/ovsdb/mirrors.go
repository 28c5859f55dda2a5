// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"fmt"
	"slices"
	"strings"

	"weft/api"
)

// mirrorPort returns the port of type=mirror for a row in table Mirror. Its name contains the row's
// UUID, because several rows may have the same name.
func mirrorPort(t tables, bridge string, id uuid) port {
	r := t["Mirror"][id]
	p := port{id: id, name: "mirror-" + string(id), bridge: bridge, table: "Mirror", words: []string{"type=mirror", "bridge=" + bridge}}
	if r.truth("select_all") {
		p.words = append(p.words, "select_all=on")
	}
	for _, column := range []string{"select_src_port", "select_dst_port", "output_port"} {
		var names []string
		for _, ref := range r.refs(column) {
			names = append(names, t["Port"][ref].text("name"))
		}
		if slices.Sort(names); len(names) > 0 {
			p.words = append(p.words, column+"="+strings.Join(names, ","))
		}
	}
	if list := r.numbers("select_vlan"); len(list) > 0 {
		p.words = append(p.words, "select_vlan="+ranges(list))
	}
	for _, column := range []string{"output_vlan", "snaplen"} {
		if n, ok := r.number(column); ok && n != 0 {
			p.words = append(p.words, fmt.Sprintf("%s=%d", column, n))
		}
	}
	slices.Sort(p.words)
	return p
}

// mirrorStatistics returns the value of Mirror.statistics. The mirror's port counts the copies as sent
// packets.
func mirrorStatistics(s *api.PortStats) value {
	return mapOf(map[string]int64{"tx_packets": int64(s.TxPackets), "tx_bytes": int64(s.TxBytes)})
}
