// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// exporterPorts returns the ports of type=ipfix and type=sflow for a bridge. They come from the
// columns ipfix and sflow of the bridge's row "id", and from the rows of Flow_Sample_Collector_Set
// that refer to the bridge. The name of such a port contains the UUID of the bridge or of that row,
// because several of them may share one row in IPFIX.
func exporterPorts(t tables, bridge string, id uuid) (list []port) {
	r := t["Bridge"][id]
	for _, ref := range r.refs("sflow") {
		if row := t["sFlow"][ref]; row != nil {
			list = append(list, exporterPort(ref, "sFlow", "sflow-"+string(id), bridge, sflowWords(row)))
		}
	}
	for _, ref := range r.refs("ipfix") {
		if row := t["IPFIX"][ref]; row != nil {
			list = append(list, exporterPort(ref, "IPFIX", "ipfix-"+string(id), bridge, ipfixWords(row)))
		}
	}
	for ref, set := range t["Flow_Sample_Collector_Set"] {
		if !slices.Contains(set.refs("bridge"), id) {
			continue
		}
		number, _ := set.number("id")
		for _, to := range set.refs("ipfix") {
			if row := t["IPFIX"][to]; row != nil {
				list = append(list, exporterPort(ref, "Flow_Sample_Collector_Set", "ipfix-"+string(ref), bridge,
					append(ipfixWords(row), fmt.Sprintf("collector_set=%d", number))))
			}
		}
	}
	return list
}

func exporterPort(id uuid, table, name, bridge string, words []string) port {
	p := port{id: id, name: name, bridge: bridge, table: table, words: append(words, "bridge="+bridge)}
	slices.Sort(p.words)
	return p
}

func ipfixWords(r row) []string {
	words := []string{"type=ipfix"}
	words = append(words, targetWords(r, 4739)...)
	for _, column := range []string{"sampling", "obs_domain_id", "obs_point_id", "cache_active_timeout", "cache_max_flows", "template_interval"} {
		if n, ok := r.number(column); ok {
			words = append(words, fmt.Sprintf("%s=%d", column, n))
		}
	}
	for _, o := range []struct{ key, word string }{{"enable-input-sampling", "input"}, {"enable-output-sampling", "output"}, {"enable-tunnel-sampling", "tunnels"}} {
		if r.get("other_config", o.key) == "false" {
			words = append(words, o.word+"=off")
		}
	}
	if text := r.get("other_config", "virtual_obs_id"); text != "" {
		words = append(words, "virtual_obs_id="+text)
	}
	return words
}

func sflowWords(r row) []string {
	words := []string{"type=sflow"}
	words = append(words, targetWords(r, 6343)...)
	for _, column := range []string{"sampling", "header", "polling"} {
		if n, ok := r.number(column); ok {
			words = append(words, fmt.Sprintf("%s=%d", column, n))
		}
	}
	if agent := r.text("agent"); agent != "" {
		words = append(words, "agent="+agent)
	}
	return words
}

// targetWords returns the option targets= for the collectors in a row. The argument "usual" is the
// UDP port of a target without a port.
func targetWords(r row, usual uint16) []string {
	var list []string
	for _, a := range r["targets"].atoms {
		text, _ := a.(string)
		if addr, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil {
			text = netip.AddrPortFrom(addr, usual).String()
		}
		list = append(list, text)
	}
	if len(list) == 0 {
		return nil
	}
	slices.Sort(list)
	return []string{"targets=" + strings.Join(list, ",")}
}
