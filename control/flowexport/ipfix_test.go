// SPDX-License-Identifier: Apache-2.0

package flowexport

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weft/control/flowexport/flowexporttest"
	"weft/datapath"
	"weft/flowtable"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 250_000_000, time.UTC)

// frameOf serializes layers into a frame, and pads it to size bytes.
func frameOf(t *testing.T, size int, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true}, list...); err != nil {
		t.Fatal(err)
	}
	frame := b.Bytes()
	return append(frame, make([]byte, max(size-len(frame), 0))...)
}

func ethernet(kind layers.EthernetType, to byte) *layers.Ethernet {
	return &layers.Ethernet{SrcMAC: []byte{2, 0, 0, 0, 0, 1}, DstMAC: []byte{to, 0, 0, 0, 0, 2}, EthernetType: kind}
}

func tcpFrame(t *testing.T, size int) []byte {
	return frameOf(t, size, ethernet(layers.EthernetTypeIPv4, 2), &layers.IPv4{Version: 4, TTL: 64, TOS: 0x48, Protocol: layers.IPProtocolTCP, SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}},
		&layers.TCP{SrcPort: 1000, DstPort: 80, ACK: true, PSH: true})
}

func sampleOf(frame []byte, probability uint32) *Sample {
	return &Sample{Sampled: datapath.Sampled{Probability: probability, SampleTag: flowtable.SampleTag{Outputs: 1}}, InPort: 1, Len: len(frame), Data: frame}
}

// exporting is an IPFIX exporter whose messages go to a decoder.
type exporting struct {
	*ipfix
	t *testing.T
	d *flowexporttest.Decoder
	// records are those that are decoded and that the test has not taken yet.
	records []map[string][]byte
	domains []uint32
	fits    bool
}

func newExporting(t *testing.T, c Config) *exporting {
	c.TemplateInterval = max(c.TemplateInterval, time.Minute)
	return &exporting{ipfix: newIPFIX(&c), t: t, d: flowexporttest.NewDecoder(), fits: true}
}

func (e *exporting) sent(message []byte) {
	e.t.Helper()
	domain, records, err := e.d.Message(message)
	if err != nil {
		e.t.Fatal(err)
	}
	e.records = append(e.records, records...)
	e.domains = append(e.domains, domain)
}

func (e *exporting) sample(s *Sample, now time.Time) int {
	e.t.Helper()
	k, ok := keyOfFrame(s)
	if !ok {
		e.t.Fatal("no key")
	}
	return e.take(s, &k, Interface{Number: 1, Index: 11, Name: "vm1", Type: "tap", TunnelPort: 4789}, Interface{Number: 2, Index: 12, Name: "vm2", Type: "vhost-user"}, now,
		func() bool { return e.fits }, e.sent)
}

func (e *exporting) single() map[string][]byte {
	e.t.Helper()
	e.flush(e.sent)
	if len(e.records) != 1 {
		e.t.Fatalf("%d records, want 1", len(e.records))
	}
	r := e.records[0]
	e.records = nil
	return r
}

func expect(t *testing.T, r map[string][]byte, name string, want any) {
	t.Helper()
	var v uint64
	for _, c := range r[name] {
		v = v<<8 | uint64(c)
	}
	got := any(v)
	if _, isText := want.(string); isText {
		got = string(r[name])
	} else {
		want = uint64(want.(int))
	}
	if r[name] == nil || got != want {
		t.Errorf("element %s: %v, want %v", name, got, want)
	}
}

// A record of a TCP segment has the elements that Open vSwitch writes. A sample with probability 1/4
// counts as four frames.
func TestRecordOfTCP(t *testing.T) {
	e := newExporting(t, Config{Domain: 7})
	s := sampleOf(tcpFrame(t, 200), math.MaxUint32/4)
	s.Point = 9
	e.sample(s, noon)
	r := e.single()
	for name, want := range map[string]any{"138": 9, "61": 0, "56": 0x020000000001, "80": 0x020000000002, "256": 0x800, "240": 14, "10": 11, "368": 6, "82": "vm1", "83": "tap",
		"60": 4, "192": 64, "4": 6, "195": 0x12, "196": 2, "5": 0x48, "8": 0x0a000001, "12": 0x0a000002, "7": 1000, "11": 80,
		"158": 750_000, "159": 750_000, "133": 0, "135": 0, "2": 4, "86": 4, "354": 4, "355": 0, "356": 0, "357": 0, "358": 0, "19": 0, "174": 0, "352": 800, "353": 800, "136": 2,
		"132": 0, "134": 0, "1": 4 * 186, "85": 4 * 186, "198": 4 * 186 * 186, "199": 4 * 186 * 186, "25": 186, "26": 186, "20": 0, "175": 0,
		"222": 4, "219": 0, "221": 4, "220": 0, "218": 0, "223": 0} {
		expect(t, r, name, want)
		delete(r, name)
	}
	if len(r) != 0 || e.domains[0] != 7 {
		t.Errorf("further elements %v, domain %d", slices.Collect(maps.Keys(r)), e.domains[0])
	}
}

// The record of each kind of frame has the elements for its headers.
func TestShapes(t *testing.T) {
	ip4 := func(p layers.IPProtocol) *layers.IPv4 {
		return &layers.IPv4{Version: 4, TTL: 1, Protocol: p, SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}}
	}
	ip6 := func(p layers.IPProtocol) *layers.IPv6 {
		return &layers.IPv6{Version: 6, HopLimit: 1, NextHeader: p, FlowLabel: 0x12345, SrcIP: slices.Concat([]byte{0xfd}, make([]byte, 14), []byte{1}), DstIP: slices.Concat([]byte{0xfd}, make([]byte, 14), []byte{2})}
	}
	tag := func(next layers.EthernetType) *layers.Dot1Q {
		return &layers.Dot1Q{VLANIdentifier: 5, Priority: 3, Type: next}
	}
	const eth = "138 61 56 80 256 240 10 368 82 83"
	const ip = " 60 192 4 195 196 5"
	for _, c := range []struct {
		name   string
		layers []gopacket.SerializableLayer
		change func(s *Sample)
		want   string
		values map[string]any
	}{
		{"ARP", []gopacket.SerializableLayer{ethernet(layers.EthernetTypeARP, 0xff), &layers.ARP{Operation: 1, AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, SourceHwAddress: make([]byte, 6), SourceProtAddress: make([]byte, 4), DstHwAddress: make([]byte, 6), DstProtAddress: make([]byte, 4)}},
			nil, eth, map[string]any{"256": 0x806, "355": 1}},
		{"tagged UDP over IPv6", []gopacket.SerializableLayer{ethernet(layers.EthernetTypeDot1Q, 2), tag(layers.EthernetTypeIPv6), ip6(layers.IPProtocolUDP), &layers.UDP{SrcPort: 5, DstPort: 6}},
			nil, eth + " 58 243 244" + ip + " 27 28 31 7 11", map[string]any{"58": 5, "244": 3, "240": 18, "60": 6, "31": 0x12345, "7": 5, "11": 6}},
		{"ICMP", []gopacket.SerializableLayer{ethernet(layers.EthernetTypeIPv4, 2), ip4(layers.IPProtocolICMPv4), &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(3, 4)}},
			nil, eth + ip + " 8 12 176 177", map[string]any{"176": 3, "177": 4}},
		{"ICMPv6", []gopacket.SerializableLayer{ethernet(layers.EthernetTypeIPv6, 2), ip6(layers.IPProtocolICMPv6), &layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(1, 3)}},
			nil, eth + ip + " 27 28 31 178 179", map[string]any{"178": 1, "179": 3}},
		{"OSPF", []gopacket.SerializableLayer{ethernet(layers.EthernetTypeIPv4, 1), ip4(layers.IPProtocolOSPF)}, func(s *Sample) { s.Outputs = 0 },
			eth + ip + " 8 12", map[string]any{"4": 89, "133": 1, "355": 1, "132": 46}},
		{"SCTP leaves", []gopacket.SerializableLayer{ethernet(layers.EthernetTypeIPv4, 1), ip4(layers.IPProtocolSCTP), &layers.SCTP{SrcPort: 5, DstPort: 6}}, func(s *Sample) { s.Egress, s.Output = true, 2 },
			eth + " 14 369 82' 83'" + ip + " 8 12 7 11", map[string]any{"61": 1, "82'": "vm2", "83'": "vhost-user", "14": 12, "19": 1, "20": 46, "355": 0}},
		{"from a tunnel", []gopacket.SerializableLayer{ethernet(layers.EthernetTypeIPv4, 2), ip4(layers.IPProtocolOSPF)},
			func(s *Sample) {
				s.Key[flowtable.WTunIPv4], s.Key[flowtable.WTunID] = 0xc0000201<<32|0xc0000202, 0x123456
			},
			eth + ip + " 8 12 6876/893 6876/894 6876/895 6876/896 6876/897 6876/891 6876/892",
			map[string]any{"6876/893": 0xc0000201, "6876/894": 0xc0000202, "6876/895": 17, "6876/897": 4789, "6876/892": 0x123456}},
	} {
		e := newExporting(t, Config{Tunnels: true, VirtualID: "here"})
		s := sampleOf(frameOf(t, 60, c.layers...), math.MaxUint32)
		if c.change != nil {
			c.change(s)
		}
		e.sample(s, noon)
		r := e.single()
		for name, want := range c.values {
			expect(t, r, name, want)
		}
		expect(t, r, "6876/898", "here")
		names := strings.Fields(c.want)
		for _, f := range e.d.Templates[slices.Collect(maps.Keys(e.d.Templates))[0]][:len(names)] {
			if f.Name != strings.TrimSuffix(names[0], "'") {
				t.Errorf("%s: element %s, want %s", c.name, f.Name, names[0])
			}
			names = names[1:]
		}
	}
}

// The frames of one flow make one record. Flows leave the cache in order of age, at the active timeout
// or when there are too many; the rest leaves when the exporter is closed.
func TestFlowCache(t *testing.T) {
	e := newExporting(t, Config{ActiveTimeout: 10 * time.Second, MaxFlows: 2})
	frame := func(port layers.TCPPort, size int) *Sample {
		return sampleOf(frameOf(t, size, ethernet(layers.EthernetTypeIPv4, 2), &layers.IPv4{Version: 4, Protocol: layers.IPProtocolTCP, SrcIP: []byte{10, 0, 0, 1}, DstIP: []byte{10, 0, 0, 2}},
			&layers.TCP{SrcPort: port, SYN: true}), math.MaxUint32)
	}
	reasons := func() (list []string) {
		e.flush(e.sent)
		for _, r := range e.records {
			list = append(list, fmt.Sprintf("%d:%d*%d", be.Uint16(r["7"]), r["136"][0], be.Uint64(r["2"])))
		}
		e.records = nil
		return list
	}
	check := func(want ...string) {
		t.Helper()
		if got := reasons(); !slices.Equal(got, want) {
			t.Errorf("records %v, want %v", got, want)
		}
	}
	e.sample(frame(1, 100), noon)
	e.sample(frame(1, 300), noon.Add(time.Second))
	e.sample(frame(2, 100), noon.Add(2*time.Second))
	e.expire(noon.Add(9*time.Second), false, e.sent)
	check()
	if n := e.sample(frame(3, 100), noon.Add(9*time.Second)); n != 1 {
		t.Errorf("%d flows evicted, want 1", n)
	}
	e.flush(e.sent)
	r := e.records[0]
	for name, want := range map[string]int{"2": 2, "1": 86 + 286, "25": 86, "26": 286, "198": 86*86 + 286*286, "352": 400, "158": 9_750_000, "159": 8_750_000, "218": 4} {
		expect(t, r, name, want)
	}
	check("1:5*2")
	e.expire(noon.Add(12*time.Second), false, e.sent)
	check("2:2*1")
	e.fits = false // other exporters have filled the cache
	if n := e.sample(frame(4, 100), noon.Add(13*time.Second)); n != 2 {
		t.Errorf("%d flows evicted, want 2", n)
	}
	check("3:5*1", "4:5*1")
	e.fits = true
	e.sample(frame(5, 100), noon.Add(14*time.Second))
	e.expire(noon.Add(14*time.Second), true, e.sent)
	check("5:4*1")
	if len(e.flows) != 0 || e.oldest.Len() != 0 {
		t.Errorf("%d flows, %d in order", len(e.flows), e.oldest.Len())
	}
}

// A template is sent before the first record of its shape in a domain, and again after the interval.
// Records of one domain share messages. Sequence numbers count records. With a collector set, the action
// chooses the domain.
func TestTemplatesAndDomains(t *testing.T) {
	e := newExporting(t, Config{OfSet: true, TemplateInterval: time.Minute})
	for i := range 20 {
		s := sampleOf(tcpFrame(t, 100), math.MaxUint32)
		s.Domain = 5
		e.sample(s, noon.Add(time.Duration(i)*time.Millisecond))
	}
	e.flush(e.sent)
	if len(e.records) != 20 || len(e.domains) >= 10 {
		t.Errorf("%d records in %d messages", len(e.records), len(e.domains))
	}
	clear(e.d.Templates)
	s := sampleOf(tcpFrame(t, 100), math.MaxUint32)
	s.Domain = 5
	e.sample(s, noon.Add(time.Minute)) // the decoder needs the template, and fails without it
	e.flush(e.sent)
	for i := range uint32(maxDomains + 1) {
		s := sampleOf(tcpFrame(t, 100), math.MaxUint32)
		s.Domain = 6 + i
		e.sample(s, noon)
	}
	e.flush(e.sent)
	if len(e.ipfix.domains) > maxDomains {
		t.Errorf("%d domains", len(e.ipfix.domains))
	}
}
