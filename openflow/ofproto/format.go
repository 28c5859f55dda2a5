// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"fmt"
	"strings"

	"weft/openflow"
)

// FormatRule returns r as a line of ovs-ofctl dump-flows, with the blank at its start and without a newline.
// Ages are those at nowNS (CLOCK_MONOTONIC). "names" has the names of ports; if it is nil, ports are shown
// by number.
func FormatRule(r *Rule, nowNS uint64, names openflow.Names) string {
	const second = 1_000_000_000
	var b strings.Builder
	age := nowNS - min(nowNS, r.CreatedNS)
	fmt.Fprintf(&b, " cookie=0x%x, duration=%s, table=%d, n_packets=%d, n_bytes=%d, ",
		r.Cookie, openflow.FormatDuration(age), r.Table, r.Packets, r.Bytes)
	if r.IdleTimeout != 0 {
		fmt.Fprintf(&b, "idle_timeout=%d, ", r.IdleTimeout)
	}
	if r.HardTimeout != 0 {
		fmt.Fprintf(&b, "hard_timeout=%d, ", r.HardTimeout)
	}
	// As in ovs-ofctl, a flag is followed by a blank, and only the importance by a comma.
	for _, word := range r.Flags.Words() {
		b.WriteString(word + " ")
	}
	if r.Importance != 0 {
		fmt.Fprintf(&b, "importance=%d, ", r.Importance)
	}
	used := max(r.UsedNS, r.CreatedNS)
	fmt.Fprintf(&b, "idle_age=%d, ", (nowNS-min(nowNS, used))/second)
	if r.ModifiedNS != r.CreatedNS {
		fmt.Fprintf(&b, "hard_age=%d, ", (nowNS-min(nowNS, r.ModifiedNS))/second)
	}
	if match := openflow.AppendPriority(nil, r.Priority, r.Match, names); len(match) > 0 {
		b.Write(append(match, ' '))
	}
	return b.String() + "actions=" + openflow.FormatActions(r.Actions, names)
}
