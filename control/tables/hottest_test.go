// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strings"
	"testing"

	"weft/control/workers/workertest"
)

// Only frames between the two samples make a megaflow hot.
func TestHottest(t *testing.T) {
	f := newRig(t)
	f.Add("udp,tp_dst=1,actions=drop", "udp,tp_dst=2,actions=drop", "udp,tp_dst=3,actions=drop")
	frames := func(port uint16, n int) {
		for range n {
			f.Worker().Frame(workertest.UDPKey(1, 1, 2, port), 100)
		}
		f.Settle()
	}
	frames(1, 1) // this frame installs the megaflow; the next ones are not held
	frames(1, 499)
	frames(2, 1)
	before := f.tables().Sample()
	frames(1, 10)
	frames(2, 20)
	frames(3, 5)
	hot := f.tables().Hottest(before, f.tables().Sample(), 2, 10)
	if len(hot) != 2 || !strings.Contains(hot[0].Match, "tp_dst=2") || hot[0].PacketsPerS != 2 || hot[0].BytesPerS != 200 ||
		!strings.Contains(hot[1].Match, "tp_dst=1") || hot[1].PacketsPerS != 1 || hot[1].Packets != 510 {
		t.Errorf("%+v", hot)
	}
}
