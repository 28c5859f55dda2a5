// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"weft/api"
)

// packet-out sends a frame by its actions or through the flow tables. Flows count the
// frame, but ports do not.
func TestPacketOut(t *testing.T) {
	s := newSite(t)
	tap, remote := s.guest.Raw("eth0"), s.remote.Raw("eth0")
	arrives := func(name string, match func([]byte) bool) {
		t.Helper()
		r := remote
		if strings.HasPrefix(name, "guest") {
			r = tap
		}
		if _, err := r.Match(settle, match); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	is := func(want []byte) func([]byte) bool { return func(f []byte) bool { return bytes.Equal(f, want) } }
	before := portOf(t, s.weft, "guest").Stats.RxPackets
	if _, stderr, _ := s.weft.TryWeft("packet-out", "in_port=guest,packet=00,actions=TABLE"); !strings.Contains(stderr, "packet") {
		t.Error(stderr)
	}

	s.weft.Weft("add-flow", "table=9,actions=output:overlay,resubmit(,9)")
	_, stderr, code := s.weft.TryWeft("packet-out", "in_port=guest,packet="+hex.EncodeToString(udpFrame(t, 2000, 100))+",actions=resubmit(,9)")
	if code != 2 || !strings.Contains(stderr, "actions: ") {
		t.Errorf("a loop: %d %s", code, stderr)
	}
	one := udpFrame(t, 2001, 1400)
	if out := s.weft.Weft("packet-out", "in_port=guest,packet="+hex.EncodeToString(one)+",actions=TABLE"); out != "" {
		t.Errorf("printed %q", out)
	}
	arrives("remote, through the tables", is(one))
	if frames, octets := packets(t, s.weft, "in_port=guest"); frames != 1 || octets != 1400 {
		t.Errorf("the flow has counted %d frames of %d bytes", frames, octets)
	}

	two := udpFrame(t, 2002, 300)
	var sent api.PacketSent
	s.weft.WeftJSON(&sent, "packet-out", "packet="+hex.EncodeToString(two)+" actions=set_field:02:00:00:00:00:77->eth_src,output:guest")
	if !strings.Contains(sent.Actions, "guest") || sent.Drop != "" {
		t.Errorf("%+v", sent)
	}
	changed := append(append(append([]byte{}, two[:6]...), 2, 0, 0, 0, 0, 0x77), two[12:]...)
	arrives("guest, by actions alone", is(changed))
	s.weft.WeftJSON(&sent, "packet-out", "in_port=uplink,packet="+hex.EncodeToString(two)+",actions=TABLE")
	if sent.Drop != "table-miss" {
		t.Errorf("of a port without flows: %+v", sent)
	}

	// continues after connection tracking
	s.weft.Weft("add-flow", "priority=40000,in_port=guest,udp,ct_state=-trk,actions=ct(table=7)")
	s.weft.Weft("add-flow", "table=7,ct_state=+new+trk,udp,actions=ct(commit),output:overlay")
	three := udpFrame(t, 2003, 100)
	s.weft.Weft("packet-out", "in_port=guest,packet="+hex.EncodeToString(three)+",actions=TABLE")
	arrives("remote, tracked", is(three))

	// The actions learn and normal also learn from a packet-out.
	s.weft.Weft("del-flows")
	s.weft.Weft("add-flow", "table=1,actions=learn(table=2,NXM_OF_ETH_DST[]=NXM_OF_ETH_SRC[],output:NXM_OF_IN_PORT[]),normal")
	s.weft.Weft("packet-out", "in_port=guest,packet="+hex.EncodeToString(three)+",actions=resubmit(,1)")
	if out := s.weft.Weft("dump-flows", "table=2"); !strings.Contains(out, "output:guest") {
		t.Errorf("not learned: %s", out)
	}
	var macs []api.MAC
	s.weft.WeftJSON(&macs, "fdb-show")
	if len(macs) != 1 || macs[0].Port != "guest" {
		t.Errorf("learned addresses: %+v", macs)
	}
	if after := portOf(t, s.weft, "guest").Stats.RxPackets; after != before {
		t.Errorf("the port has received %d frames that it has not", after-before)
	}
}

// A capture of the port controller shows frames that flows send to the controller.
func TestCaptureController(t *testing.T) {
	l := newLab(t)
	d := l.Host("host").Weftd()
	d.Tap(l.Host("guest"), guestMAC, "", guestMTU)
	d.Weft("add-flow", "udp,actions=mod_nw_dst:10.9.9.9,controller:64")
	p := background(t, d, "capturing", "capture", "controller", "-c", "1", "--json")
	frame := udpFrame(t, 1003, 300)
	d.Weft("packet-out", "in_port=guest,packet="+hex.EncodeToString(frame)+",actions=TABLE")
	out := finished(t, p)
	_, value, _ := strings.Cut(out, "\n") // skips the line about the capture
	var f api.Captured
	if err := json.NewDecoder(strings.NewReader(value)).Decode(&f); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if f.InPort != "guest" || f.Len != 300 || len(f.Data) != 64 || !strings.Contains(f.Flow, "nw_dst=10.9.9.9") {
		t.Errorf("%+v", f)
	}
}
