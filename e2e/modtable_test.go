// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft/api"
)

// A full flow table refuses a new flow. With the setting evict, the new flow replaces
// the least important one. The limit survives a restart of control.
func TestTableLimit(t *testing.T) {
	d, a, b := twoGuests(t)
	source, sink := a.Raw("eth0"), b.Raw("eth0")
	d.Weft("mod-table", "0", "limit:3")
	d.Weft("add-flow", "priority=9,in_port=1,udp,tp_dst=5001,importance=1,actions=output:2")
	d.Weft("add-flow", "priority=9,in_port=1,udp,tp_dst=5002,importance=5,actions=output:2")
	_, stderr, code := d.TryWeft("add-flow", "priority=9,in_port=1,udp,tp_dst=5003,importance=7,actions=output:2")
	if code != 2 || oneLine(stderr) != nil || !strings.Contains(stderr, "table 0: expected at most 3 flows") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	send(t, source, udpFrame(t, 5001, 100), 20)
	if n := received(t, sink, 5001, 5003, 20); n != 20 {
		t.Errorf("%d of 20 frames arrived", n)
	}

	d.Weft("mod-table", "0", "evict")
	if text := d.Weft("dump-tables"); !strings.Contains(text, "3      yes") {
		t.Errorf("dump-tables shows\n%s", text)
	}
	p := background(t, d, "monitoring", "monitor", "--flows")
	d.Weft("mod-flows", "in_port=2,actions=output:1") // importance 0, no timeouts
	d.Weft("add-flow", "priority=9,in_port=1,udp,tp_dst=5003,importance=7,actions=output:2")
	evicted := "flow deleted (eviction): "
	eventually(t, func() error {
		if !strings.Contains(p.Output(), evicted) {
			return fmt.Errorf("no %q in\n%s", evicted, p.Output())
		}
		return nil
	})
	d.Weft("add-flow", "priority=9,in_port=1,udp,tp_dst=5004,importance=8,actions=output:2")
	eventually(t, func() error {
		if n := strings.Count(p.Output(), evicted); n != 2 || !strings.Contains(p.Output(), "n_packets=20, n_bytes=2000") {
			return fmt.Errorf("%d evictions, the second of a flow of 20 frames:\n%s", n, p.Output())
		}
		return nil
	})
	// the most important flows remain
	send(t, source, udpFrame(t, 5001, 100), 20)
	send(t, source, udpFrame(t, 5004, 100), 20)
	if n := received(t, sink, 5001, 5004, 20); n != 20 {
		t.Errorf("%d frames arrived, want the 20 of the flow that is there", n)
	}
	_, stderr, code = d.TryWeft("add-flow", "priority=9,in_port=1,udp,tp_dst=5005,importance=4,actions=output:2")
	if code != 2 || !strings.Contains(stderr, "at most 3 flows") {
		t.Errorf("a flow of less importance than all: exit code %d, %s", code, stderr)
	}

	d.Control().Kill()
	d.Start()
	var tables []api.Table
	d.WeftJSON(&tables, "dump-tables")
	if len(tables) != 1 || tables[0].Flows != 3 || tables[0].Limit != 3 || !tables[0].Evict {
		t.Errorf("with another control process: %+v", tables)
	}
}
