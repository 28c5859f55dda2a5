// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"testing"

	"weft/openflow/xlate"
)

// Only the option addresses= restricts the addresses from which a tap may send. mac= does not, because a
// bridge may be behind the tap.
func TestMACOfATapBindsNothingAlone(t *testing.T) {
	for _, c := range []struct {
		kind, macs, addresses string
		hosts                 int
	}{
		{kindTap, "02:00:00:00:00:01", "", 0},
		{kindTap, "02:00:00:00:00:01", "02:00:00:00:00:01 10.0.0.1", 1},
		{kindTap, "02:00:00:00:00:01", "02:00:00:00:00:02", 2},
		{kindVhost, "02:00:00:00:00:01,02:00:00:00:00:03", "02:00:00:00:00:02", 3},
	} {
		var info xlate.PortInfo
		if err := fillBinding(&info, c.kind, map[string]string{"mac": c.macs, "addresses": c.addresses}); err != nil {
			t.Fatal(err)
		}
		n := 0
		if info.Binding != nil {
			n = len(info.Binding.Hosts)
		}
		if n != c.hosts {
			t.Errorf("%+v: %d hosts", c, n)
		}
	}
}
