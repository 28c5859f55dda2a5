// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"testing"
)

// Check returns an error of one line, which names the invalid field.
func TestSpecRefuses(t *testing.T) {
	for _, c := range []struct {
		spec Spec
		word string
	}{
		{Spec{Protocol: "sctp"}, "sctp"},
		{Spec{Mode: "x"}, `"x"`},
		{Spec{Mode: Connect, Protocol: UDP}, "needs TCP"},
		{Spec{Mode: Request, Reverse: true}, "reversed"},
		{Spec{Mode: Request, BitsPerSecond: 1}, "requests a second"},
		{Spec{BitsPerSecond: 1, PerSecond: 1}, "one of them"},
		{Spec{Streams: 129}, "129 streams"},
		{Spec{Streams: -1}, "-1 streams"},
		{Spec{Seconds: -1}, "-1 seconds"},
		{Spec{Warmup: -1}, "-1 seconds"},
		{Spec{Flows: 2}, "raw"},
		{Spec{Protocol: Raw, Flows: maxFlows + 1}, "flows"},
		{Spec{Protocol: Raw, Sizes: Mix{{63, 1}}}, "size 63"},
		{Spec{Protocol: UDP, Sizes: Mix{{21, 1}}}, "size 21"},
		{Spec{Protocol: UDP, Sizes: Mix{{64, 1}, {70_000, 1}}}, "size 70000"},
		{Spec{Sizes: Mix{{maxBlock + 1, 1}}}, "size"},
		{Spec{FrameSizes: imix}, "frames"},
		{Spec{Protocol: Raw, Mode: Request, Response: 100}, "response"},
		{Spec{Protocol: UDP, Mode: Request, Response: 5}, "5 bytes"},
		{Spec{SocketBuffer: -1}, "buffer"},
	} {
		if c.spec.Seconds == 0 {
			c.spec.Seconds = 1
		}
		err := c.spec.Check()
		if err == nil || !strings.Contains(err.Error(), c.word) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v, expected %q", c.spec, err, c.word)
		}
	}
	good := Spec{Seconds: 1}
	if err := good.Check(); err != nil || good.Protocol != TCP || good.Streams != 1 {
		t.Errorf("%+v: %v", good, err)
	}
}
