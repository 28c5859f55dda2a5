// SPDX-License-Identifier: Apache-2.0

package flowexport

import (
	"bytes"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/flowtable"
)

var agent = netip.MustParseAddr("192.0.2.1")

func decodeSFlow(t *testing.T, b []byte) *layers.SFlowDatagram {
	t.Helper()
	p := gopacket.NewPacket(b, layers.LayerTypeSFlow, gopacket.Default)
	if p.ErrorLayer() != nil || p.Layer(layers.LayerTypeSFlow) == nil {
		t.Fatalf("% x: %v", b, p.ErrorLayer())
	}
	return p.Layer(layers.LayerTypeSFlow).(*layers.SFlowDatagram)
}

// gopacket reads from a flow sample the frame's first bytes, its ports and the sampling rate.
func TestFlowSamples(t *testing.T) {
	e := newSFlow(&Config{Header: 61}, noon)
	var sent [][]byte
	send := func(b []byte) { sent = append(sent, bytes.Clone(b)) }
	in, out := Interface{Number: 1, Index: 11}, Interface{Number: 2, Index: 12}
	frame := tcpFrame(t, 200)
	for _, tag := range []flowtable.SampleTag{{Outputs: 1}, {Outputs: 3}, {}, {Unknown: true}} {
		s := sampleOf(frame[:128], math.MaxUint32/10)
		s.Len, s.SampleTag = 200, tag
		s.Key[flowtable.WEthSrc] = flowtable.VLANPresent | 5<<13 | 7
		e.take(s, in, out, agent, noon, send)
	}
	e.flush(agent, noon.Add(time.Second), send)
	if len(sent) != 1 {
		t.Fatalf("%d datagrams, want 1", len(sent))
	}
	d := decodeSFlow(t, sent[0])
	if d.DatagramVersion != 5 || d.AgentAddress.String() != agent.String() || d.SequenceNumber != 1 || d.AgentUptime != 1000 || len(d.FlowSamples) != 4 {
		t.Fatalf("datagram %+v", d)
	}
	for i, output := range []uint32{12, 1<<31 | 3, 1<<30 | 256, 0} {
		s := d.FlowSamples[i]
		format := uint32(s.OutputInterfaceFormat)<<30 | s.OutputInterface
		if format != output || s.InputInterface != 11 || s.SamplingRate != 10 || s.SamplePool != uint32(10*(i+1)) || s.SequenceNumber != uint32(i+1) || s.SourceIDIndex != 11 || len(s.Records) != 2 {
			t.Errorf("sample %d: %+v, want output %x", i, s, output)
		}
		raw := s.Records[0].(layers.SFlowRawPacketFlowRecord)
		vlan := s.Records[1].(layers.SFlowExtendedSwitchFlowRecord)
		if raw.FrameLength != 204 || raw.PayloadRemoved != 4 || raw.HeaderLength != 61 || vlan.IncomingVLAN != 7 || vlan.IncomingVLANPriority != 5 {
			t.Errorf("sample %d: %+v %+v", i, raw, vlan)
		}
		if tcp, ok := raw.Header.Layer(layers.LayerTypeTCP).(*layers.TCP); !ok || tcp.DstPort != 80 {
			t.Errorf("sample %d: header %s", i, raw.Header)
		}
	}
}

// Counter samples are sent at the polling interval. Many samples are split over datagrams of at most
// maxMessage bytes.
func TestCounterSamples(t *testing.T) {
	e := newSFlow(&Config{Polling: 10 * time.Second}, noon)
	var list []Interface
	for i := range uint32(40) {
		list = append(list, Interface{Number: i + 1, Index: 100 + i, Name: "vm1", OpenFlow: i + 1, DatapathID: 0xabc, Up: true, Mbps: 10_000, Duplex: "full",
			RxPackets: 1, RxBytes: 1 << 40, RxDrops: 3, TxPackets: 4, TxBytes: 5, TxDrops: 6})
	}
	var sent [][]byte
	send := func(b []byte) {
		if len(b) > maxMessage {
			t.Errorf("a datagram of %d bytes", len(b))
		}
		sent = append(sent, bytes.Clone(b))
	}
	for second := range 21 {
		now := noon.Add(time.Duration(second) * time.Second)
		e.poll(list, netip.MustParseAddr("2001:db8::1"), now, send)
		e.flush(netip.MustParseAddr("2001:db8::1"), now, send)
	}
	count := 0
	for i, b := range sent {
		d := decodeSFlow(t, b)
		if d.SequenceNumber != uint32(i+1) || d.AgentAddress.String() != "2001:db8::1" {
			t.Errorf("datagram %d: %+v", i, d)
		}
		for _, s := range d.CounterSamples {
			generic := s.Records[0].(layers.SFlowGenericInterfaceCounters)
			port := s.Records[1].(layers.SFlowOpenflowPortCounters)
			name := s.Records[2].(layers.SFlowPORTNAME)
			if generic.IfIndex != uint32(100+count%40) || generic.IfSpeed != 10e9 || generic.IfDirection != 1 || generic.IfStatus != 3 || generic.IfInOctets != 1<<40 || generic.IfInUcastPkts != 1 ||
				generic.IfInDiscards != 3 || generic.IfOutUcastPkts != 4 || generic.IfOutOctets != 5 || generic.IfOutDiscards != 6 || port.DatapathID != 0xabc || name.Str != "vm1" || s.SequenceNumber != uint32(1+count/40) {
				t.Fatalf("counter sample %d: %+v %+v %+v", count, s, port, name)
			}
			count++
		}
	}
	if count != 80 {
		t.Errorf("%d counter samples, want 2 of each port", count)
	}
	if e.poll(list[:1], agent, noon.Add(time.Minute), send); len(e.polled) != 1 {
		t.Errorf("%d ports are known after all but one have left", len(e.polled))
	}
}
