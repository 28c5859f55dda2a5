// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"os/exec"
	"strings"
	"testing"

	"weft/openflow/ofp"
)

// ovs-ofctl prints the queues of a port and their statistics.
func TestOfctlShowsQueues(t *testing.T) {
	tool, err := exec.LookPath("ovs-ofctl")
	if err != nil {
		t.Skip("ovs-ofctl is missing: install openvswitch-common for the comparison with it")
	}
	r := newRig(t, func(s *Setup) {
		s.Switch.(*fakeSwitch).ports = []Port{{Port: ofp.Port{No: 1, Name: "vm1"}}, {Port: ofp.Port{No: 2, Name: "vm2"}}}
	})
	for _, version := range []string{"OpenFlow10", "OpenFlow13", "OpenFlow14", "OpenFlow15"} {
		for words, want := range map[string]string{
			"queue-stats":        "3 queues\n  port 1 queue 0: bytes=600, pkts=5, errors=2, duration=3s\n",
			"queue-stats 1 7":    "1 queues\n  port 1 queue 7: bytes=0, pkts=0, errors=0, duration=0s\n",
			"queue-stats 2":      "1 queues\n  port 2 queue 1: ",
			"queue-stats 2 9":    "BAD_QUEUE",
			"queue-stats 3":      "BAD_PORT",
			"queue-get-config 1": "port=1\nqueue 0:\nqueue 7:\n",
			"queue-get-config 3": "BAD_PORT",
		} {
			if version == "OpenFlow10" {
				want = strings.NewReplacer("duration=3s", "duration=?", "duration=0s", "duration=?").Replace(want)
			}
			verb, rest, _ := strings.Cut(words, " ")
			args := append([]string{"-O", version, verb, "unix:" + r.path}, strings.Fields(rest)...)
			if out, _ := exec.Command(tool, args...).CombinedOutput(); !strings.Contains(string(out), want) {
				t.Errorf("%s %s:\n%swant %s", version, words, out, want)
			}
		}
	}
}
