// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"weft/api"
)

// fakeSwitch is an API whose answers are functions of the request.
func fakeSwitch(t *testing.T, bridge string, answers map[string]func() any) *weftSwitch {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := answers[r.Method+" "+r.URL.RequestURI()]
		if answer == nil {
			w.WriteHeader(http.StatusBadRequest)
			answer = func() any { return api.Error{Error: "unexpected " + r.Method + " " + r.URL.RequestURI()} }
		}
		_ = json.NewEncoder(w).Encode(answer()) // the client finds a broken answer
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	c := &config{Socket: socket, Bridge: bridge}
	s, err := c.connect()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fixed returns a function that always gives this value as its answer.
func fixed(value any) func() any { return func() any { return value } }

// The MTU of a pod is the least of the MTUs that the bridge's tunnels carry.
func TestMTU(t *testing.T) {
	for _, x := range []struct {
		remotes []api.Remote
		want    int
	}{
		{nil, 1500},
		{[]api.Remote{{Address: "10.0.0.1", MTU: 9000}}, 1500},
		{[]api.Remote{{Address: "10.0.0.1", MTU: 1500}, {Address: "10.0.0.2"}}, 1450},
		{[]api.Remote{{Address: "10.0.0.1", MTU: 1500}, {Address: "fd00::1", MTU: 1500}}, 1430},
	} {
		s := fakeSwitch(t, "br0", map[string]func() any{"GET /v1/ports?bridge=br0": fixed([]api.Port{{Type: "tap"}, {Type: "vxlan", Remotes: x.remotes}})})
		if mtu, err := s.mtu(); mtu != x.want || err != nil {
			t.Errorf("%v: MTU %d, %v, want %d", x.remotes, mtu, err, x.want)
		}
	}
}

// addPort waits until the port forwards.
func TestAddPortWaits(t *testing.T) {
	looks := 0
	s := fakeSwitch(t, "", map[string]func() any{
		"POST /v1/ports": fixed(api.Port{Name: "p", State: "waiting"}),
		"GET /v1/ports?name=p": func() any {
			looks++
			return []api.Port{{Name: "p", State: "up"}}
		},
	})
	if err := s.addPort("p", nil); err != nil || looks != 1 {
		t.Errorf("%v after %d looks", err, looks)
	}
}

// CHECK fails if the port is missing, down or different. It ignores ports of other types.
func TestComparePort(t *testing.T) {
	a := attachment{"pods", "c1", "eth0"}
	for want, port := range map[string]api.Port{
		"": {Name: a.port(), Type: "device", State: "up", Options: map[string]string{"tag": "7"}},
		"port " + a.port() + " of pods/c1/eth0: weftd has no such port":         {Name: a.port(), Type: "tap"},
		"port " + a.port() + " of pods/c1/eth0: state failed: device x is gone": {Name: a.port(), Type: "device", State: "failed", Detail: "device x is gone"},
		"port " + a.port() + " of pods/c1/eth0: has tag=8, not tag=7":           {Name: a.port(), Type: "device", State: "up", Options: map[string]string{"tag": "8"}},
		"port " + a.port() + " of pods/c1/eth0: has tag=, not tag=7":            {Name: a.port(), Type: "device", State: "up"},
	} {
		s := fakeSwitch(t, "", map[string]func() any{"GET /v1/ports": fixed([]api.Port{port})})
		err := s.comparePort(a, []string{"type=device", "bridge=br0", "tag=7"})
		if want == "" && err == nil {
			continue
		}
		if err == nil || err.Error() != want || codeOf(err) != codeDiffers {
			t.Errorf("code %d: %v, want %q", codeOf(err), err, want)
		}
	}
}

// STATUS names what is missing: the bridge, or the engine.
func TestStatus(t *testing.T) {
	for _, x := range []struct {
		show api.Show
		want uint
	}{
		{api.Show{EnginePID: 1, Bridges: []api.Bridge{{Name: "br0"}}}, 0},
		{api.Show{EnginePID: 1}, types.ErrPluginNotAvailable},
		{api.Show{Bridges: []api.Bridge{{Name: "br0"}}}, types.ErrLimitedConnectivity},
	} {
		s := fakeSwitch(t, "br0", map[string]func() any{"GET /v1/show": fixed(x.show)})
		if err := s.ready(); codeOf(err) != x.want {
			t.Errorf("%+v: %v, want code %d", x.show, err, x.want)
		}
	}
}

// GC without a list of attachments removes nothing.
func TestCollectNeedsAList(t *testing.T) {
	err := collect(&skel.CmdArgs{StdinData: []byte(`{"cniVersion": "1.1.0", "name": "pods", "socket": "/nonexistent"}`)})
	if codeOf(err) != types.ErrInvalidNetworkConfig {
		t.Errorf("%v", err)
	}
	for text, want := range map[string]bool{`{"a": null}`: true, `{"a": []}`: true, `{"b": []}`: false} {
		if hasKey([]byte(text), "a") != want {
			t.Errorf("key a of %s: %v", text, !want)
		}
	}
}
