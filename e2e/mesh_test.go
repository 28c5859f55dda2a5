// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/layers"

	"weft/e2e/lab"
)

// mesh is five hosts on one network segment. Each has a tunnel for three VNIs, and a
// guest in each VNI. All VNIs use the same addresses.
//
//	guest v-i: VNI 100+v, 10.0.0.i, 02:00:00:00:00:0i     host i: 172.16.0.i
type mesh struct {
	t      *testing.T
	weft   []*lab.Daemon
	guests [][]*lab.Host // guests by VNI, then by host
}

const (
	meshHosts = 5
	meshVNIs  = 3
)

func newMesh(t *testing.T) *mesh {
	l := newLab(t)
	m := &mesh{t: t, guests: make([][]*lab.Host, meshVNIs)}
	segment := l.Host("segment")
	segment.Run("ip", "link", "add", "br0", "type", "bridge")
	segment.Run("ip", "link", "set", "br0", "mtu", fmt.Sprint(underlayMTU), "up")
	for i := range meshHosts {
		h := l.Host(fmt.Sprint("h", i))
		plug := fmt.Sprint("s", i)
		l.Wire(h, "u0", segment, plug, underlayMTU)
		segment.Run("ip", "link", "set", plug, "master", "br0")
		h.Address("u0", m.vtep(i)+"/24")
		d := h.Weftd()
		m.weft = append(m.weft, d)
		d.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
		d.Weft("add-flow", "actions=normal")
		var others []string
		for j := range meshHosts {
			if j != i {
				others = append(others, m.vtep(j))
			}
		}
		for v := range meshVNIs {
			d.Weft("add-port", fmt.Sprint("vx", v), "type=vxlan", fmt.Sprint("vni=", 100+v), "remote="+strings.Join(others, ","))
			m.guests[v] = append(m.guests[v], l.Host(fmt.Sprintf("g%d-%d", v, i)))
			m.attach(v, i, i)
		}
	}
	return m
}

func (m *mesh) vtep(i int) string    { return fmt.Sprint("172.16.0.", i+1) }
func (m *mesh) address(i int) string { return fmt.Sprint("10.0.0.", i+1) }
func (m *mesh) mac(i int) string     { return fmt.Sprintf("02:00:00:00:00:%02x", i+1) }

func (m *mesh) attach(v, i, host int) {
	m.weft[host].Tap(m.guests[v][i], m.mac(i), m.address(i)+"/24", guestMTU, fmt.Sprint("vni=", 100+v))
}

// announce sends a gratuitous ARP (RFC 5227 section 3) for guest i of VNI v, as
// hypervisors do after a migration.
func (m *mesh) announce(v, i int) {
	m.t.Helper()
	src, _ := net.ParseMAC(m.mac(i))
	ip := net.ParseIP(m.address(i)).To4()
	frame := serialize(m.t, &layers.Ethernet{SrcMAC: src, DstMAC: layers.EthernetBroadcast, EthernetType: layers.EthernetTypeARP},
		&layers.ARP{AddrType: 1, Protocol: 0x800, HwAddressSize: 6, ProtAddressSize: 4, Operation: 1,
			SourceHwAddress: src, SourceProtAddress: ip, DstHwAddress: make([]byte, 6), DstProtAddress: ip})
	if err := m.guests[v][i].Raw("eth0").Send(frame); err != nil {
		m.t.Fatal(err)
	}
}

func TestMesh(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	for v := range meshVNIs {
		for i := 1; i < meshHosts; i++ {
			reach(t, m.guests[v][0], m.address(i))
			reach(t, m.guests[v][i], m.address(0))
		}
	}
	t.Run("VNIs are apart", func(t *testing.T) {
		m.guests[1][0].Address("eth0", "10.0.0.99/24")
		reach(t, m.guests[1][3], "10.0.0.99")
		for _, from := range []*lab.Host{m.guests[0][0], m.guests[0][3], m.guests[2][4]} {
			if p, err := lab.Ping(from, "10.0.0.99", 2); err != nil || p.Received != 0 {
				t.Errorf("%s reached another VNI: %+v, %v", from, p, err)
			}
		}
		// a flow can send frames to a port of another VNI
		m.weft[0].Weft("add-flow", "priority=40000,in_port=g0-0,arp,arp_tpa=10.0.0.99,actions=output:g1-0")
		wire := m.guests[1][0].Raw("eth0")
		m.guests[0][0].Try("ping", "-c", "1", "-W", "1", "10.0.0.99")
		if _, err := wire.Match(settle, func(f []byte) bool {
			return len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 1 && f[41] == 99
		}); err != nil {
			t.Error("a flow that names the port does not cross: ", err)
		}
	})
	t.Run("the host answers ARP for known addresses", m.answered)
	t.Run("guests move", m.moves)
}

// answered checks that a host itself answers ARP requests for addresses that it knows.
func (m *mesh) answered(t *testing.T) {
	asker, other := m.guests[0][0], m.guests[0][2].Raw("eth0")
	asker.Run("ip", "neighbour", "flush", "dev", "eth0")
	reach(t, asker, m.address(1))
	question := func(f []byte) bool {
		return len(f) >= 42 && f[12] == 8 && f[13] == 6 && f[21] == 1 && f[31] == 1 && f[41] == 2
	}
	if _, err := other.Match(2*silence, question); err == nil {
		t.Error("an ARP request for a known address was sent to another host")
	}
	if out := asker.Run("ip", "neighbour", "show", m.address(1)); !strings.Contains(out, m.mac(1)) {
		t.Errorf("the neighbour entry is %s, want %s", out, m.mac(1))
	}
}

// moves lets guest 1 migrate between hosts while two guests ping it. Each of them may
// lose three pings more than the outage of a move costs.
func (m *mesh) moves(t *testing.T) {
	const interval = 20 * time.Millisecond
	const count = 150
	var pingers []*lab.Pinging
	for _, from := range []int{0, 4} {
		pingers = append(pingers, m.guests[0][from].StartPings(m.address(1), count, interval.Seconds()))
	}
	time.Sleep(300 * time.Millisecond)
	allowed, at := 0, 1
	for _, to := range []int{3, 4, 1} {
		left := time.Now()
		m.weft[at].Weft("del-port", "g0-1")
		m.attach(0, 1, to)
		m.announce(0, 1)
		for _, from := range []int{0, 4} {
			reach(t, m.guests[0][from], m.address(1))
		}
		away := time.Since(left)
		allowed += int(away/interval) + 3
		t.Logf("from host %d to %d: away for %v", at, to, away.Round(time.Millisecond))
		at = to
		time.Sleep(300 * time.Millisecond)
	}
	for i, p := range pingers {
		got, err := p.Wait(settle * 2)
		t.Logf("pinger %d: %d of %d answered, %d may be lost", i, got.Received, got.Sent, allowed)
		if err != nil || got.Sent < count || got.Sent-got.Received > allowed {
			t.Errorf("pinger %d: %+v, %v; at most %d of %d may be lost", i, got, err, allowed, count)
		}
	}
	for v := range meshVNIs { // guests in other VNIs have not moved
		reach(t, m.guests[v][2], m.address(1))
	}
}
