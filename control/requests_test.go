// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"weft/control/agent"
	"weft/control/workers/workertest"
	"weft/flowtable"
	"weft/packet"
)

// discover returns a DHCPDISCOVER frame of guest 1, and its key.
func discover(t *testing.T, inPort uint32) (key flowtable.Key, frame []byte) {
	t.Helper()
	m, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 0, 0, 0, 0, 1})
	if err != nil {
		t.Fatal(err)
	}
	payload := m.ToBytes()
	frame = make([]byte, 14+20+8, 400)
	for i := range 6 {
		frame[i] = 0xff
	}
	packet.Ethernet(frame).SetSrc(guestMAC(1))
	packet.Ethernet(frame).SetType(packet.EtherTypeIPv4)
	copy(frame[14:], []byte{0x45, 0, byte((28 + len(payload)) >> 8), byte(28 + len(payload)), 0, 0, 0, 0, 64, 17, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255,
		0, 68, 0, 67, byte((8 + len(payload)) >> 8), byte(8 + len(payload))})
	key = workertest.UDPKey(inPort, 1, 2, 67)
	key[flowtable.WEthDst] |= 0xffffffffffff << 16
	key[flowtable.WL4] = 68<<48 | 67<<32
	key[flowtable.WIPv4] = 0xffffffff
	return key, append(frame, payload...)
}

// The switch answers a guest's DHCP from the declared addresses, without asking the agent and without a
// megaflow. After the network's service is removed, it forwards DHCP like other frames.
func TestFleetAnswersDHCP(t *testing.T) {
	h := &fleetHost{newFakes(t), 1}
	h.addGuest("vm")
	h.addGuest("vm2")
	services := &agent.Services{Subnets: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.254")}, DHCP: true, LeaseS: 600}
	declare := func(s *agent.Services) {
		p, other := declaredVM(1), declaredVM(2)
		other.Name, p.Services, other.Services = "vm2", s, s
		h.apply(agent.Changes{Endpoint: h.endpoint(), Nets: []agent.Net{{VNI: 7, Services: s}}, Ports: []agent.Port{p, other}, Addresses: []agent.Address{h.address(1, h, 1)}})
	}
	vm, other := h.port("vm").Number, h.port("vm2").Number
	declare(services)
	key, frame := discover(t, vm)
	h.worker().Whole(key, frame)
	h.settle()
	h.worker().On(func() {
		w := h.worker()
		if len(w.Injected) != 1 || w.Consumed != 1 || w.Injected[0].Output != vm {
			t.Errorf("%d answers, %d requests taken", len(w.Injected), w.Consumed)
			return
		}
		if m, err := dhcpv4.FromBytes(w.Injected[0].Frame[42:]); err != nil || m.MessageType() != dhcpv4.MessageTypeOffer || m.YourIPAddr.String() != "10.0.0.1" {
			t.Errorf("%v %v", m, err)
		}
		if _, found := w.Lookup(&key); found {
			t.Error("a megaflow for the request")
		}
	})
	if counts := h.d.pipeline.Leases().Counts().ByResult(); counts["answered"] != 1 {
		t.Errorf("%v", counts)
	}
	tr, err := h.trace("in_port=vm,udp,dl_src=02:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff,tp_src=68,tp_dst=67", "")
	if err != nil || !strings.Contains(fmt.Sprint(tr), "control answers it") {
		t.Errorf("%v, %v", tr, err)
	}
	// more frames at once than the port's limit; on a slow machine, one attempt may not reach it
	for range 20 {
		for range 40 {
			h.worker().Whole(key, frame)
		}
		h.settle()
		if h.d.pipeline.Leases().Counts().ByResult()["limited"] > 0 {
			break
		}
	}
	if counts := h.d.pipeline.Leases().Counts().ByResult(); counts["answered"] < 32 || counts["limited"] == 0 {
		t.Errorf("%v", counts)
	}
	declare(nil)
	h.worker().Whole(key, frame)
	h.settle()
	if got := h.actionsOf(&key); len(got) != 1 || got[0].Op != flowtable.OpOutput || got[0].U32 != other {
		t.Errorf("without services: %+v", got)
	}
	declare(services)
	h.worker().On(func() {
		if _, found := h.worker().Lookup(&key); found {
			t.Error("the megaflow stays after the services are declared again")
		}
	})
}
