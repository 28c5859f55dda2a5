// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"weft/e2e/lab"
)

// traffic has those fields of the JSON of weft bench client that tests use.
type traffic struct {
	Sent     struct{ Frames, Bytes uint64 }
	Received struct{ Frames, Bytes uint64 }
	Streams  []struct{ Lost, Duplicates, Reordered uint64 }
	Latency  struct {
		Count      int64
		P50        float64 `json:"p50_us"`
		ClockError float64 `json:"clock_error_us"`
	}
}

func measured(t *testing.T, guest lab.Guest, weft string, args ...string) traffic {
	t.Helper()
	var got traffic
	eventually(t, func() error {
		out, err := guest.Try(append([]string{weft, "bench", "client", "--json"}, args...)...)
		if err == nil {
			err = json.Unmarshal([]byte(out), &got)
		}
		return err
	})
	return got
}

// All sent frames arrive, except those of a flow that a rule drops.
func TestBenchOnPorts(t *testing.T) {
	l := newLab(t)
	host := l.Host("host")
	d := host.Weftd()
	weft := d.Binary("weft")
	a, b, control := filepath.Join(l.Dir, "a.sock"), filepath.Join(l.Dir, "b.sock"), "unix:"+filepath.Join(l.Dir, "bench.sock")
	d.Weft("add-port", "a", "type=vhost-user", "mode=server", "path="+a)
	d.Weft("add-port", "b", "type=vhost-user", "mode=client", "path="+b)
	d.Weft("add-flow", "in_port=a,actions=output:b")
	d.Weft("add-flow", "in_port=b,actions=output:a")
	host.Spawn(weft, "bench", "server", "--listen", control, "--raw", b)

	args := []string{control, "--raw", a, "--size", "imix", "--flows", "10", "--rate", "4000", "-k", "480", "-P", "2"} // 480 frames fit into a ring, so a slow server loses none
	got := measured(t, host, weft, args...)
	const bytes = 960 / 12 * (7*64 + 4*590 + 1514)
	if got.Sent.Frames != 960 || got.Sent.Bytes != bytes || got.Received != got.Sent || got.Latency.Count != 960 || got.Latency.ClockError != 0 {
		t.Errorf("%+v", got)
	}
	got = measured(t, host, weft, append(args, "-R", "-O", "0.1")...)
	if got.Sent.Frames != 960 || got.Received != got.Sent {
		t.Errorf("in reverse: %+v", got)
	}
	got = measured(t, host, weft, control, "--raw", a, "--rr", "-k", "200", "-P", "4")
	if got.Sent.Frames != 800 || got.Received != got.Sent {
		t.Errorf("requests: %+v", got)
	}
	d.Weft("add-flow", "priority=40000,in_port=a,udp,tp_src=1027,actions=drop")
	got = measured(t, host, weft, control, "--raw", a, "--flows", "10", "--rate", "4000", "-k", "480")
	// after the change of flows, frames that miss the caches may be reordered
	if st := got.Streams[0]; got.Received.Frames != 432 || st.Lost != 48 || st.Duplicates != 0 {
		t.Errorf("with a flow dropped: %+v", got)
	}
}

// benchInGuest measures between a virtual machine and the remote guest. It starts the
// measurement in the machine once over vsock and once over the network.
func benchInGuest(t *testing.T, s *site, vm *lab.VM) {
	weft := s.weft.Binary("weft")
	vm.Spawn("weft", "bench", "server", "--listen", "vsock:5210", "--listen", ":5210", "--orders")
	s.remote.Spawn(weft, "bench", "server")
	count := []string{remoteIP, "-u", "-l", "600", "--rate", "2000", "-k", "500"}
	for name, got := range map[string]traffic{
		"vsock":   measured(t, vm, "weft", append(count, "--from", "vsock:1:5210")...), // CID 1 is the machine itself
		"network": measured(t, s.remote, weft, append(count, "--from", vmIP)...),
		"reverse": measured(t, s.remote, weft, append(count, "--from", vmIP, "-R")...),
	} {
		if got.Sent.Frames != 500 || got.Received != got.Sent || got.Latency.Count != 500 ||
			got.Latency.ClockError <= 0 || got.Latency.P50 > 10e6 { // the two machines have different clocks
			t.Errorf("ordered over %s: %+v", name, got)
		}
	}
	if got := measured(t, vm, "weft", remoteIP, "--rr", "-k", "50", "-t", "30"); got.Received.Frames != 50 || got.Latency.P50 <= 0 {
		t.Errorf("requests: %+v", got)
	}
	if got := measured(t, vm, "weft", remoteIP, "-t", "0.5"); got.Sent.Bytes == 0 || got.Received.Bytes != got.Sent.Bytes {
		t.Errorf("TCP: %+v", got)
	}
}
