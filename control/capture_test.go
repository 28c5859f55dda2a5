// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/control/engines"
	"weft/control/workers/workertest"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/waitfor"
	"weft/packet"
)

// capturing is a capture that runs in the background.
type capturing struct {
	ready  chan struct{}
	frames chan *api.Captured
	ended  chan error
	stop   context.CancelFunc
}

func (f *fakes) capture(r api.CaptureRequest) *capturing {
	f.t.Helper()
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 60*time.Second)
	c := &capturing{ready: make(chan struct{}), frames: make(chan *api.Captured, 100), ended: make(chan error, 1), stop: stop}
	go func() {
		c.ended <- client.Capture(ctx, r, func() { close(c.ready) }, func(p *api.Captured) error { c.frames <- p; return nil })
		stop()
	}()
	f.t.Cleanup(stop)
	select {
	case <-c.ready:
	case err := <-c.ended:
		f.t.Fatal(err)
	}
	return c
}

// capturesSet returns the number of captures that the workers run now.
func (f *fakes) capturesSet() int {
	n, _ := f.d.captures.Counts()
	return n
}

func TestCapture(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	c := f.capture(api.CaptureRequest{Port: "p1", Limit: 2})
	const in, out = byte(datapath.CapturedIn), byte(datapath.CapturedOut)
	f.worker().Show([5]byte{datapath.VoidCapture, in}, 1, 2, workertest.UDPFrame(60))
	// this record belongs to a capture that no client of the daemon has
	f.worker().Show([5]byte{5, in}, 1, 2, workertest.UDPFrame(60))
	f.worker().Show([5]byte{0, in, 0, byte(datapath.VerdictSent)}, 1, 2, workertest.UDPFrame(60))
	f.worker().Show([5]byte{0, out, 0, byte(datapath.VerdictDropped), byte(packet.DropTxFull)}, 1, 9, workertest.UDPFrame(1400))
	a, b := <-c.frames, <-c.frames
	if a.Kind != "in" || a.Port != "p1" || a.Verdict != "sent" || a.Reason != "" || !reflect.DeepEqual(a.Outputs, []string{"p2"}) || a.Len != 60 || len(a.Data) != 60 {
		t.Errorf("%+v", a)
	}
	if b.Kind != "out" || b.Verdict != "dropped" || b.Reason != "tx-full" || !reflect.DeepEqual(b.Outputs, []string{"9"}) || b.Len != 1400 {
		t.Errorf("%+v", b)
	}
	const flow = "udp,dl_src=02:00:00:00:00:01,dl_dst=02:00:00:00:00:02,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=7,tp_dst=9"
	if a.Flow != flow || b.Flow != flow {
		t.Errorf("flows %q and %q", a.Flow, b.Flow)
	}
	if since := time.Since(a.Time); since < 0 || since > time.Minute {
		t.Errorf("captured at %v", a.Time)
	}
	if err := <-c.ended; err != nil {
		t.Error(err)
	}
	waitfor.True(t, "no capture is set", func() bool { return f.capturesSet() == 0 })
}

// A capture continues when the engine is replaced. It ends when its client disconnects.
func TestCaptureOutlivesTheEngine(t *testing.T) {
	f := newFakes(t)
	c := f.capture(api.CaptureRequest{Drops: true})
	before := f.last()
	_ = before.Kill()
	waitfor.True(t, "another engine", func() bool {
		now := f.d.engines.Current()
		return now != nil && now != engines.Client(before)
	})
	drop := [5]byte{0, byte(datapath.CapturedDrop), 0, byte(datapath.VerdictDropped), byte(packet.DropFlow)}
	waitfor.True(t, "the capture in the other engine", func() bool {
		set := false
		f.worker().On(func() { set = f.worker().Captures[0].Kind == datapath.CaptureDrops })
		return set
	})
	f.worker().Show(drop, 7, 0, []byte{1, 2, 3})
	if got := <-c.frames; got.Kind != "drop" || got.Reason != "flow-drop" || got.Port != "7" || got.Flow != "" {
		t.Errorf("%+v", got)
	}
	c.stop()
	if err := <-c.ended; err != nil {
		t.Error(err)
	}
	waitfor.True(t, "the capture is removed", func() bool {
		set := true
		f.worker().On(func() { set = f.worker().Captures[0].Kind != datapath.CaptureNone })
		return !set
	})
}

// A new daemon removes the captures that a killed daemon has left in the workers.
func TestCaptureLeftBehind(t *testing.T) {
	f := newFakes(t)
	f.d.pipeline.Workers().Broadcast(datapath.AppendCapture(nil, 3, &datapath.Capture{Kind: datapath.CaptureDrops, Snap: 40}))
	if err := f.d.pipeline.Workers().WaitApplied(); err != nil {
		t.Fatal(err)
	}
	if err := f.d.pipeline.Workers().WaitApplied(); err != nil {
		t.Fatal(err)
	}
	f.die()
	capture := func() (capture workertest.Capture) {
		f.worker().On(func() { capture = f.worker().Captures[3] })
		return capture
	}
	if got := capture(); got.Kind != datapath.CaptureDrops || got.Snap != 40 {
		t.Fatalf("capture %+v", got)
	}
	f.begin()
	waitfor.True(t, "the capture is removed", func() bool { return capture().Kind == datapath.CaptureNone })
}

func TestCaptureRefusals(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	client := overSocket(f.config.Socket)
	for _, c := range []struct{ path, word string }{
		{"capture", "port"}, {"capture?port=p2", "p2"}, {"capture?port=p1&snap=x", "snap=x"},
		{"capture?drops=maybe", "drops=maybe"}, {"capture?drops=true&limit=-1", "limit=-1"}, {"capture?drops=true&port=p3", "p3"},
		{"trace/live?match=nw_sorc%3D1", "nw_sorc"}, {"trace/live?match=table%3D1", "table"},
		{"trace/live?match=reg0%3D1", "registers"}, {"trace/live?limit=x", "limit=x"},
	} {
		resp, err := client.Get("http://weft/v1/" + c.path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		var refusal api.Error
		if json.Unmarshal(text, &refusal) != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(refusal.Error, c.word) {
			t.Errorf("%s: %d %s, want %q", c.path, resp.StatusCode, text, c.word)
		}
	}
	for range datapath.MaxCaptures {
		f.capture(api.CaptureRequest{Port: "p1"})
	}
	if _, err := f.d.captures.Begin(datapath.Capture{}); err == nil || !strings.Contains(err.Error(), fmt.Sprint(datapath.MaxCaptures)) {
		t.Errorf("one more: %v", err)
	}
}

// The match of a live trace has port numbers of the bridge's flows. The capture in the workers has the
// numbers of the data path.
func TestTraceTapOfAnotherBridge(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	if _, err := f.d.bridges.Add(api.AddBridge{Name: "br1"}); err != nil {
		t.Fatal(err)
	}
	p, err := f.d.ports.Add("q1", []string{"type=vxlan", "vni=900", "remote=192.0.2.9", "bridge=br1"})
	if err != nil || p.InFlows() == p.Number {
		t.Fatal(p, err)
	}
	for _, in := range []string{"q1", fmt.Sprint(p.InFlows())} {
		req, err := http.NewRequest(http.MethodGet, "http://weft/?bridge=br1&match=in_port%3D"+in, nil)
		if err != nil {
			t.Fatal(err)
		}
		capture, err := f.d.rest.TraceOf(req)
		if got := capture.Key.InPort(); err != nil || got != p.Number {
			t.Errorf("in_port=%s: port %d, want %d; %v", in, got, p.Number, err)
		}
	}
}

// The capture of a live trace gets the key and the mask of the requested match.
func TestTraceTap(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	req, err := http.NewRequest(http.MethodGet, "http://weft/?limit=3&match=in_port%3Dp1,udp,nw_dst%3D10.0.0.0/8", nil)
	if err != nil {
		t.Fatal(err)
	}
	capture, err := f.d.rest.TraceOf(req)
	if err != nil || capture.Kind != datapath.CaptureTrace || capture.Limit != 3 {
		t.Fatalf("%+v, %v", capture, err)
	}
	yes, no := workertest.UDPKey(1, 1, 2, 9), workertest.UDPKey(2, 1, 2, 9)
	for k, want := range map[*flowtable.Key]bool{&yes: true, &no: false} {
		got := true
		for i := range k {
			got = got && k[i]&capture.Mask[i] == capture.Key[i]
		}
		if got != want {
			t.Errorf("key %x: %v", *k, got)
		}
	}
}
