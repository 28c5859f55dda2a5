// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// redirected is a reference implementation of the XDP program.
func redirected(frame []byte, endpoints map[netip.AddrPort]bool) bool {
	if len(frame) < 14 {
		return false
	}
	l3 := frame[14:]
	var to netip.Addr
	var l4 []byte
	gre := false
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		if len(l3) < 20 || l3[0]>>4 != 4 || l3[9] != 17 && l3[9] != 47 || binary.BigEndian.Uint16(l3[6:])&0x3fff != 0 {
			return false
		}
		ihl := int(l3[0]&15) * 4
		if ihl < 20 || len(l3) < ihl {
			return false
		}
		to, l4, gre = netip.AddrFrom4([4]byte(l3[16:20])), l3[ihl:], l3[9] == 47
	case 0x86dd:
		if len(l3) < 40 || l3[0]>>4 != 6 {
			return false
		}
		to, l4, gre = netip.AddrFrom16([16]byte(l3[24:40])).Unmap(), l3[40:], l3[6] == 47
		switch {
		case gre || l3[6] == 17:
		case l3[6] == 60 && len(l4) >= 8 && l4[0] == 47 && l4[1] == 0:
			l4, gre = l4[8:], true
		default:
			return false
		}
	default:
		return false
	}
	if len(l4) < 8 {
		return false
	}
	port := binary.BigEndian.Uint16(l4[2:])
	if gre {
		return (port == 0x6558 || port == 0x88be || port == 0x22eb) && endpoints[netip.AddrPortFrom(to, 0)]
	}
	return port != 0 && endpoints[netip.AddrPortFrom(to, port)]
}

var testEndpoints = map[netip.AddrPort]bool{
	netip.MustParseAddrPort("10.0.0.1:4789"):    true,
	netip.MustParseAddrPort("10.0.0.1:8472"):    true,
	netip.MustParseAddrPort("[fd00::1]:4789"):   true,
	netip.MustParseAddrPort("192.168.7.9:4789"): true,
	netip.MustParseAddrPort("10.0.0.1:0"):       true, // GRE
	netip.MustParseAddrPort("[fd00::7]:0"):      true,
}

// verdicts returns a function that runs the XDP program on a frame and reports whether the program
// redirected it. A device map replaces the map of sockets.
func verdicts(t testing.TB) func(frame []byte) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: loads an XDP program")
	}
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	endpoints, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 20, ValueSize: 4, MaxEntries: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endpoints.Close() })
	for e := range testEndpoints {
		for _, k := range makeEndpointKeys(e) {
			if err := endpoints.Put(k, uint32(1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	devices, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.DevMap, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { devices.Close() })
	if err := devices.Put(uint32(0), uint32(lo.Index)); err != nil {
		t.Fatal(err)
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "Apache-2.0", Instructions: instructions(endpoints.FD(), devices.FD()),
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { prog.Close() })
	return func(frame []byte) bool { // testing.T must not be used here: fuzz targets have their own
		verdict, err := prog.Run(&ebpf.RunOptions{Data: frame})
		if err != nil {
			panic(err)
		}
		switch verdict {
		case xdpPass:
			return false
		case 4: // result 4: XDP_REDIRECT
			return true
		}
		panic(fmt.Sprintf("verdict %d", verdict))
	}
}

// datagram returns a UDP datagram to an endpoint over IPv4 or IPv6. If the endpoint's port is 0, it
// returns Ethernet in GRE. options is the number of 32-bit words of IPv4 options. Over IPv6, an odd
// number means that GRE follows the destination options that Linux adds.
func datagram(dst netip.AddrPort, options int) []byte {
	f := make([]byte, 14, 200)
	copy(f, "\x02\x00\x00\x00\x00\x02\x02\x00\x00\x00\x00\x01")
	if dst.Addr().Is4() {
		binary.BigEndian.PutUint16(f[12:], 0x0800)
		ip := make([]byte, 20+4*options)
		ip[0], ip[8], ip[9] = 0x45+byte(options), 64, 17
		a := dst.Addr().As4()
		copy(ip[12:], "\x0a\x00\x00\x02")
		copy(ip[16:], a[:])
		f = append(f, ip...)
	} else {
		binary.BigEndian.PutUint16(f[12:], 0x86dd)
		ip := make([]byte, 40)
		ip[0], ip[6], ip[7] = 0x60, 17, 64
		a := dst.Addr().As16()
		copy(ip[24:], a[:])
		f = append(f, ip...)
	}
	if dst.Port() == 0 {
		if dst.Addr().Is4() {
			f[14+9] = 47
		} else if f[14+6] = 47; options%2 != 0 {
			f[14+6] = 60
			f = append(f, 47, 0, 4, 1, 4, 1, 1, 0)
		}
		return append(append(f, 0, 0, 0x65, 0x58), make([]byte, 14)...)
	}
	udp := make([]byte, 8)
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	return append(append(f, udp...), "\x08\x00\x00\x00\x00\x00\x64\x00"...)
}

func TestProgramTakesOnlyOwnEndpoints(t *testing.T) {
	run := verdicts(t)
	v4, v6 := netip.MustParseAddrPort("10.0.0.1:4789"), netip.MustParseAddrPort("[fd00::1]:4789")
	gre4, gre6 := netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("[fd00::7]:0")
	change := func(f []byte, offset int, b ...byte) []byte {
		copy(f[offset:], b)
		return f
	}
	for _, c := range []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"IPv4", datagram(v4, 0), true},
		{"IPv4 with options", datagram(v4, 3), true},
		{"IPv4 with the most options", datagram(v4, 10), true},
		{"IPv6", datagram(v6, 0), true},
		{"GRE", datagram(gre4, 0), true},
		{"GRE after IPv4 options", datagram(gre4, 2), true},
		{"GRE over IPv6", datagram(gre6, 0), true},
		{"GRE after destination options", datagram(gre6, 1), true},
		{"GRE with ERSPAN", change(datagram(gre4, 0), 36, 0x88, 0xbe), true},
		{"GRE with ERSPAN III over IPv6", change(datagram(gre6, 0), 56, 0x22, 0xeb), true},
		{"GRE with IPv4", change(datagram(gre4, 0), 36, 8, 0), false},
		{"GRE with the port of VXLAN", change(datagram(gre4, 0), 36, 0x12, 0xb5), false},
		{"UDP to the protocol type of GRE", change(datagram(v4, 0), 36, 0x65, 0x58), false},
		{"UDP to port 0", change(datagram(v4, 0), 36, 0, 0), false},
		{"GRE to another address", change(datagram(gre4, 0), 33, 9), false},
		{"GRE fragment", change(datagram(gre4, 0), 20, 0x20), false},
		{"longer destination options", change(datagram(gre6, 1), 55, 1), false},
		{"destination options before UDP", change(datagram(gre6, 1), 54, 17), false},
		{"GRE cut after the destination options", datagram(gre6, 1)[:14+40+8+7], false},
		{"cut destination options", datagram(gre6, 1)[:14+40+7], false},
		{"don't fragment", change(datagram(v4, 0), 20, 0x40), true},
		{"first fragment", change(datagram(v4, 0), 20, 0x20), false},
		{"later fragment", change(datagram(v4, 0), 20, 0, 1), false},
		{"another port", datagram(netip.MustParseAddrPort("10.0.0.1:4788"), 0), false},
		{"another address", datagram(netip.MustParseAddrPort("10.0.0.2:4789"), 0), false},
		{"another IPv6 address", datagram(netip.MustParseAddrPort("[fd00::2]:4789"), 0), false},
		{"IPv6 address of mapped form", datagram(netip.AddrPortFrom(netip.MustParseAddr("::ffff:10.0.0.2"), 4789), 0), false},
		{"TCP", change(datagram(v4, 0), 23, 6), false},
		{"TCP over IPv6", change(datagram(v6, 0), 20, 6), false},
		{"version 5", change(datagram(v4, 0), 14, 0x55), false},
		{"header length 16", change(datagram(v4, 0), 14, 0x44), false},
		{"VLAN", append(append(datagram(v4, 0)[:12:12], 0x81, 0, 0, 5), datagram(v4, 0)[12:]...), false},
		{"ARP", change(datagram(v4, 0), 12, 8, 6), false},
		{"cut in UDP", datagram(v4, 0)[:14+20+7], false},
		{"cut after UDP", datagram(v4, 0)[:14+20+8], true},
		{"options cut", datagram(v4, 10)[:14+20+20], false},
		{"cut in IPv6", datagram(v6, 0)[:14+39], false},
		{"cut in UDP over IPv6", datagram(v6, 0)[:14+40+7], false},
	} {
		if got := run(c.frame); got != c.want || redirected(c.frame, testEndpoints) != c.want {
			t.Errorf("%s: program %v, slow implementation %v, want %v", c.name, got, redirected(c.frame, testEndpoints), c.want)
		}
	}
}

// mutated returns a datagram addressed to an endpoint, usually with random changes.
func mutated(r *rand.Rand) []byte {
	var to netip.AddrPort
	n := r.IntN(len(testEndpoints))
	for e := range testEndpoints {
		if n--; n < 0 {
			to = e
			break
		}
	}
	f := datagram(to, r.IntN(11))
	for range r.IntN(4) {
		f[12+r.IntN(len(f)-12)] ^= byte(1 << r.IntN(8))
	}
	return f[:max(14, len(f)-r.IntN(40)*r.IntN(2))]
}

func TestProgramAgreesWithItsTwin(t *testing.T) {
	run := verdicts(t)
	r := rand.New(rand.NewPCG(1, 2))
	hits := 0
	for range 20000 {
		f := mutated(r)
		got, want := run(f), redirected(f, testEndpoints)
		if got != want {
			t.Fatalf("program %v, slow implementation %v: %x", got, want, f)
		}
		if got {
			hits++
		}
	}
	if hits < 1000 || hits > 19000 {
		t.Errorf("only %d frames match an endpoint: the test shows little", hits)
	}
}

func FuzzProgram(f *testing.F) {
	run := verdicts(f)
	for e := range testEndpoints {
		f.Add(datagram(e, 0))
		f.Add(datagram(e, 2))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < 14 || len(frame) > 3000 {
			return // the kernel's test run refuses shorter frames
		}
		if got, want := run(frame), redirected(frame, testEndpoints); got != want {
			t.Fatalf("program %v, slow implementation %v", got, want)
		}
	})
}
