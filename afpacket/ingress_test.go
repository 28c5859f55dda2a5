// SPDX-License-Identifier: Apache-2.0

package afpacket

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weft/internal/testnet"
	"weft/internal/waitfor"
	"weft/packet"
	"weft/packet/packettest"
	"weft/port/porttest"
)

// udpErrors returns how many datagrams the UDP sockets of host i have refused. The sockets of the
// tunnel endpoints refuse each datagram that reaches them.
func (r *rig) udpErrors(i int) (n string) {
	r.t.Helper()
	r.ns[i].Do(func() {
		for _, file := range []string{"snmp", "snmp6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				r.t.Fatal(err)
			}
			lines := strings.Split(string(text), "\n")
			for k, line := range lines {
				if f := strings.Fields(line); len(f) == 2 && f[0] == "Udp6InErrors" {
					n += " " + f[1]
				} else if len(f) > 3 && f[0] == "Udp:" && f[1] == "InDatagrams" {
					n += strings.Fields(lines[k+1])[3] // InErrors
				}
			}
		}
	})
	if len(strings.Fields(n)) != 2 {
		r.t.Fatalf("refused datagrams of UDP and UDP over IPv6: %q", n)
	}
	return n
}

// awaitUDPErrors waits until udpErrors returns want.
func (r *rig) awaitUDPErrors(i int, want string) {
	r.t.Helper()
	for end := time.Now().Add(30 * time.Second); r.udpErrors(i) != want; {
		if time.Now().After(end) {
			r.t.Fatalf("refused datagrams of UDP and UDP over IPv6: %q, want %q", r.udpErrors(i), want)
		}
		time.Sleep(time.Millisecond)
	}
}

// sendTunnelled sends a datagram over IPv4 and one over IPv6 from host 0 to the endpoints of
// host 1.
func (r *rig) sendTunnelled() {
	r.t.Helper()
	a, b := packettest.NewArena(r.t, 1<<16), new(packet.Batch)
	for _, v6 := range []bool{false, true} {
		tmpl := r.template(v6)
		tmpl.Push(a.Add(b, make([]byte, 100), 100, 0), 5, 0, 0, nil)
	}
	if n := r.dev[0].Tx()[0].Send(b, inOrder[:2]); n != 2 {
		r.t.Fatalf("sent %d frames", n)
	}
}

// needIngress skips the test on a kernel that cannot attach the ingress program.
func (r *rig) needIngress() {
	r.t.Helper()
	if why := r.up[1].InStack(); why == needsTCX {
		r.t.Skip("the ingress program " + why)
	} else if why != "" {
		r.t.Fatal(why)
	}
}

// The kernel's stack does not see the datagrams of the uplink's endpoints. After an endpoint is
// removed, it sees them.
func TestStackSeesNoTunnel(t *testing.T) {
	r := newRig(t)
	r.needIngress()
	before := r.udpErrors(1)
	r.sendTunnelled()
	r.receive(1, 2)
	if now := r.udpErrors(1); now != before {
		t.Errorf("refused datagrams: %q, want %q", now, before)
	}
	sinks := r.up[1].sinks
	r.up[1].sinks = nil // so that SetEndpoints leaves open the sockets that count
	defer closeAll(sinks)
	r.ns[1].Do(func() {
		if err := r.up[1].SetEndpoints(nil); err != nil {
			t.Fatal(err)
		}
	})
	r.sendTunnelled()
	r.awaitUDPErrors(1, "1 1")
}

// The kernel's stack gets all fragments of a datagram. Without the first fragment, it would keep the
// others in memory until a timeout.
func TestStackSeesFragments(t *testing.T) {
	r := newRig(t)
	r.needIngress()
	r.ns[0].Do(func() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, make([]byte, 3000), 0, &unix.SockaddrInet4{Port: 4789, Addr: r.addr[1][0].As4()}); err != nil {
			t.Fatal(err)
		}
	})
	r.awaitUDPErrors(1, "1 0")
}

// An ingress program that cannot be replaced is detached. Otherwise it would go on dropping the
// datagrams of endpoints that were removed.
func TestIngressThatCannotChange(t *testing.T) {
	r := newRig(t)
	r.needIngress()
	sinks := r.up[1].sinks
	r.up[1].sinks = nil // so that SetEndpoints leaves open the sockets that count
	defer closeAll(sinks)
	testnet.WithoutBPF(t, func() {
		if err := r.up[1].SetEndpoints(nil); err != nil {
			t.Error(err)
		}
	})
	if why := r.up[1].InStack(); why != "missing privilege: loading the ingress program needs CAP_BPF" {
		t.Errorf("InStack returns %q", why)
	}
	r.sendTunnelled()
	r.awaitUDPErrors(1, "1 1")
}

// The kernel detaches the ingress program when the last uplink with its link closes.
func TestIngressOutlivesControl(t *testing.T) {
	r := newRig(t)
	r.needIngress()
	blob, fds, err := r.up[1].Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Restore(blob, porttest.Duplicates(t, append(fds, r.up[1].IngressFDs()...)))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	r.up[1].Close()
	info, err := again.ingress.Info()
	if err != nil {
		t.Fatal(err)
	}
	r.ns[1].Do(func() {
		if err := again.SetEndpoints([]netip.AddrPort{netip.AddrPortFrom(r.addr[1][1], 4789)}); err != nil {
			t.Fatal(err)
		}
	})
	now, err := again.ingress.Info()
	if err != nil || now.ID != info.ID || now.Program == info.Program {
		t.Errorf("link %d with program %d after link %d with program %d: %v", now.ID, now.Program, info.ID, info.Program, err)
	}
	r.sendTunnelled()
	r.receive(1, 1)
	if got := r.udpErrors(1); got != "0 0" {
		t.Errorf("refused datagrams: %q, want none", got)
	}
}

// The ingress program leaves frames that are too short for a tunnel's datagram to the device's next
// program. It must not read beyond a frame's end: the kernel would then end it with the result 0,
// which skips the next program and the filters of tc.
func TestIngressOfShortFrames(t *testing.T) {
	testnet.NeedsRoot(t, "loads a BPF program")
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("10.9.0.2:4789"), netip.MustParseAddrPort("[fd09::2]:4789"),
		netip.MustParseAddrPort("10.9.0.3:0"), netip.MustParseAddrPort("[fd09::3]:0")}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: ingressProgram(takeEndpoints(endpoints))})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	options := gre(endpoints[3], true, 14)
	for n := 54; n <= len(options); n++ {
		want := int32(tcxNext)
		if n >= 66 { // the protocol type is complete
			want = tcxDrop
		}
		if got, err := program.Run(&ebpf.RunOptions{Data: options[:n]}); err != nil || int32(got) != want {
			t.Errorf("GRE behind options, %d bytes: result %d, want %d: %v", n, int32(got), want, err)
		}
	}
	for _, to := range endpoints[2:] {
		if got, err := program.Run(&ebpf.RunOptions{Data: gre(to, false, 40)}); err != nil || int32(got) != tcxDrop {
			t.Errorf("GRE to %v: result %d, want %d: %v", to, int32(got), tcxDrop, err)
		}
	}
	for _, to := range endpoints[:2] {
		const vxlan = 8 + 14 // VXLAN and an inner Ethernet header
		whole := datagram(to, vxlan)
		headers := len(whole) - vxlan
		for n := headers - 8; n <= len(whole); n++ { // 8: the kernel runs no program with less than an IP header
			got, err := program.Run(&ebpf.RunOptions{Data: whole[:n]})
			if err != nil {
				t.Fatal(err)
			}
			switch result := int32(got); {
			case n < headers && result != tcxNext:
				t.Errorf("%v, %d bytes: result %d, want %d", to, n, result, tcxNext)
			case n == len(whole) && result != tcxDrop:
				t.Errorf("%v, a whole datagram: result %d, want %d", to, result, tcxDrop)
			}
		}
	}
}

// gre returns a frame to an endpoint with n bytes in GRE. If hasOptions is true, an IPv6 option (the
// tunnel encapsulation limit) precedes GRE.
func gre(to netip.AddrPort, hasOptions bool, n int) []byte {
	f := datagram(to, 0)
	f = f[:len(f)-8]
	next := &f[20]
	if to.Addr().Is4() {
		next = &f[23]
	}
	if *next = unix.IPPROTO_GRE; hasOptions {
		*next = unix.IPPROTO_DSTOPTS
		f = append(f, unix.IPPROTO_GRE, 0, 4, 1, 4, 1, 1, 0)
	}
	return append(append(f, 0, 0, 0x65, 0x58), make([]byte, n)...)
}

// The uplink receives Ethernet in GRE if an endpoint with port 0 has the address. All other GRE
// belongs to the kernel.
func TestEndpointsOfGRE(t *testing.T) {
	r := newRig(t)
	r.ns[1].Do(func() {
		if err := r.up[1].SetEndpoints([]netip.AddrPort{netip.AddrPortFrom(r.addr[1][0], 0), netip.AddrPortFrom(r.addr[1][1], 0)}); err != nil {
			t.Fatal(err)
		}
	})
	var want, got []int // lengths of frames
	for i, e := range r.addr[1] {
		to := netip.AddrPortFrom(e, 0)
		layer3 := gre(to, false, 70)
		layer3[len(layer3)-72], layer3[len(layer3)-71] = 8, 0
		for _, f := range [][]byte{layer3, datagram(netip.AddrPortFrom(e, 4789), 90), gre(to, false, 80+i), gre(to, true, 90+i)} {
			if to.Addr().Is4() {
				if f[23] == unix.IPPROTO_DSTOPTS {
					continue // the option exists only in IPv6
				}
				ip := packet.IPv4(f[14:34])
				ip[8] = 64
				ip.SetTotalLen(len(f) - 14)
				copy(ip[12:16], r.addr[0][0].AsSlice())
				ip.SetChecksum(packet.Checksum(ip))
			} else {
				f[21] = 64
				packet.IPv6(f[14:54]).SetPayloadLen(len(f) - 54)
				copy(f[22:38], r.addr[0][1].AsSlice())
			}
			r.sendTagged(0xe000, f)
		}
		want = append(want, len(gre(to, false, 80+i)))
		if to.Addr().Is6() {
			want = append(want, len(gre(to, true, 90+i)))
		}
	}
	for _, f := range r.receive(1, len(want)) {
		got = append(got, len(f))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("the uplink received frames of %v bytes, want %v", got, want)
	}
}

// datagram returns a frame with a UDP datagram of n bytes to an endpoint.
func datagram(to netip.AddrPort, n int) []byte {
	l4 := 34
	if to.Addr().Is6() {
		l4 = 54
	}
	f := make([]byte, l4+8+n)
	if to.Addr().Is4() {
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IP)
		f[14], f[23] = 0x45, unix.IPPROTO_UDP
		copy(f[30:], to.Addr().AsSlice())
	} else {
		binary.BigEndian.PutUint16(f[12:], unix.ETH_P_IPV6)
		f[14], f[20] = 0x60, unix.IPPROTO_UDP
		copy(f[38:], to.Addr().AsSlice())
	}
	binary.BigEndian.PutUint16(f[l4+2:], to.Port())
	return f
}

// A datagram with a VLAN tag belongs to the VLAN's device, even if its address is an endpoint's. The
// uplink does not receive it, and the ingress program leaves it to the stack. A priority tag, which
// has the VLAN ID 0, changes nothing.
func TestVLANDatagramsAreNotTheUplinks(t *testing.T) {
	r := newRig(t)
	r.needIngress()
	const vlanLen, priorityLen = 100, 101 // payload in bytes
	passed := r.countBehindIngress(1)
	var want, got []int // lengths of frames
	for _, e := range r.addr[1] {
		to := netip.AddrPortFrom(e, 4789)
		r.sendTagged(0xe005, datagram(to, vlanLen)) // priority 7, VLAN 5
		r.sendTagged(0xe000, datagram(to, priorityLen))
		want = append(want, len(datagram(to, priorityLen)))
	}
	waitfor.True(t, "the ingress program passes the frames of VLAN 5", func() bool { return passed() >= 2 })
	for _, f := range r.receive(1, 2) {
		got = append(got, len(f))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the uplink received frames of %v bytes, want those with a priority tag, %v bytes", got, want)
	}
	if n := passed(); n != 2 {
		t.Errorf("the ingress program passed %d frames, want those of VLAN 5 over IPv4 and IPv6", n)
	}
}

// sendTagged sends a frame with a VLAN tag from host 0 to host 1.
func (r *rig) sendTagged(tci uint16, frame []byte) {
	r.t.Helper()
	tagged := append(append(bytes.Clone(frame[:12]), 0x81, 0, byte(tci>>8), byte(tci)), frame[12:]...)
	copy(tagged, r.mac[1][:])
	copy(tagged[6:], r.mac[0][:])
	r.ns[0].Do(func() {
		ifi, err := net.InterfaceByName("u0")
		if err != nil {
			r.t.Fatal(err)
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, tagged, 0, &unix.SockaddrLinklayer{Ifindex: ifi.Index}); err != nil {
			r.t.Fatal(err)
		}
	})
}

// countBehindIngress attaches another program behind the ingress program of host i. The returned
// function returns how many tagged frames this program has seen.
func (r *rig) countBehindIngress(i int) func() uint64 {
	r.t.Helper()
	check := func(err error) {
		r.t.Helper()
		if err != nil {
			r.t.Fatal(err)
		}
	}
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	check(err)
	r.t.Cleanup(func() { counts.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, skbVLANPresent, asm.Word),
		asm.JEq.Imm(asm.R2, 0, "next"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "next"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("next"),
		asm.Return(),
	}})
	check(err)
	defer program.Close()
	r.ns[i].Do(func() {
		behind, err := link.AttachTCX(link.TCXOptions{Interface: r.up[i].ifindex, Program: program, Attach: ebpf.AttachTCXIngress, Anchor: link.Tail()})
		check(err)
		r.t.Cleanup(func() { behind.Close() })
	})
	return func() (n uint64) {
		r.t.Helper()
		check(counts.Lookup(uint32(0), &n))
		return n
	}
}
