// SPDX-License-Identifier: Apache-2.0

package central

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"weft/central/centraltest"
	"weft/central/wire"
	"weft/control/agent"
)

// topology says among how many networks the ports are divided.
type topology struct {
	name string
	nets func(ports int) int
}

// topologies are the choices for Options.Topology. With each of them, a port is on a random network
// and a random host.
var topologies = []topology{
	{"recorded", func(ports int) int { return max(1, ports/250) }}, // with 10,000 ports: 40 networks of 250 ports
	{"flat", func(int) int { return 1 }},
	{"small", func(ports int) int { return max(1, ports/10) }}, // with 10,000 ports: 1,000 networks of 10 ports
}

// model is the test's own record of all ports and their hosts.
type model struct {
	nets   []*wire.Net
	hosts  []*wire.Host
	ports  map[string]*placed
	byNet  map[string]map[string]*placed // ports by network id, then by port id
	onHost []map[string]*placed          // ports by host index, then by port id
	// inNet says how many ports of a network are on a host. The keys are the network's id and the
	// host's index.
	inNet map[string]map[int]int
	next  int // number of the port that was made last
	// Hosts whose index is below "simulated" are simulated. All other hosts run weftd.
	simulated int
}

type placed struct {
	*wire.Port
	key  centraltest.AddressKey
	host int
}

func newModel(simulated, realHosts, nets int) *model {
	hosts := simulated + realHosts
	m := &model{simulated: simulated, ports: map[string]*placed{}, byNet: map[string]map[string]*placed{}, inNet: map[string]map[int]int{},
		onHost: make([]map[string]*placed, hosts)}
	for n := range hosts {
		m.hosts = append(m.hosts, &wire.Host{Id: fmt.Sprintf("h%d", n), Name: hostName(n), Endpoint: endpointOf(n).AsSlice()})
		m.onHost[n] = map[string]*placed{}
	}
	for n := range nets {
		id := fmt.Sprintf("n%d", n)
		m.nets = append(m.nets, &wire.Net{Id: id, Name: "net" + id[1:], Vni: uint32(1000 + n)})
		m.byNet[id], m.inNet[id] = map[string]*placed{}, map[int]int{}
	}
	return m
}

func hostName(n int) string { return fmt.Sprintf("host%d", n) }

func endpointOf(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 100 + byte(n>>16), byte(n >> 8), byte(n)})
}

func (m *model) fill(ports int, random *rand.Rand) (list []*placed) {
	where := random.Perm(ports)
	for i := range ports {
		p := m.port(m.nets[i*len(m.nets)/ports], where[i]%m.simulated)
		m.add(p)
		list = append(list, p)
	}
	return list
}

func (m *model) port(net *wire.Net, host int) *placed {
	m.next++
	var mac [8]byte
	binary.BigEndian.PutUint64(mac[:], 0x020000000000|uint64(m.next))
	return &placed{host: host, key: centraltest.AddressKey{VNI: net.Vni, MAC: 0x020000000000 | uint64(m.next)},
		Port: &wire.Port{Id: fmt.Sprintf("p%d", m.next), Name: fmt.Sprintf("port%d", m.next), Net: net.Id, Mac: mac[2:],
			Addresses: [][]byte{{172, 16 + byte(m.next>>16), byte(m.next >> 8), byte(m.next)}}}}
}

func (m *model) add(p *placed) {
	m.ports[p.Id] = p
	m.byNet[p.Net][p.Id] = p
	m.onHost[p.host][p.Id] = p
	m.inNet[p.Net][p.host]++
}

func (m *model) remove(p *placed) (leftNet bool) {
	delete(m.ports, p.Id)
	delete(m.byNet[p.Net], p.Id)
	delete(m.onHost[p.host], p.Id)
	if m.inNet[p.Net][p.host]--; m.inNet[p.Net][p.host] > 0 {
		return false
	}
	delete(m.inNet[p.Net], p.host)
	return true
}

func (m *model) local(host int) (list []agent.LocalPort) {
	for _, p := range m.onHost[host] {
		list = append(list, agent.LocalPort{Name: p.Name, Up: true})
	}
	return list
}

// onDemand reports whether a network has more than 1000 ports. A host does not receive all addresses of
// such a network, but asks the hub for those that it needs.
func (m *model) onDemand(net string) bool { return len(m.byNet[net]) > 1000 }

// expect returns the state that a host's switch should have. It includes only networks in which the
// host has a port.
func (m *model) expect(host int) *centraltest.Expected {
	d := &centraltest.Declaration{Nets: map[string]*wire.Net{}, Ports: map[string]*wire.Port{}, Hosts: map[string]*wire.Host{},
		Binds: map[string]centraltest.Bound{}}
	nets := map[string]bool{}
	for _, p := range m.onHost[host] {
		nets[p.Net] = true
	}
	for _, n := range m.nets {
		if !nets[n.Id] {
			continue
		}
		d.Nets[n.Id] = n
		for id, p := range m.byNet[n.Id] {
			h := m.hosts[p.host]
			d.Ports[id], d.Hosts[h.Id] = p.Port, h
			d.Binds[id] = centraltest.Bound{Bind: &wire.Bind{Port: id, Host: h.Id, Endpoint: h.Endpoint}}
		}
	}
	return d.Expect(m.hosts[host].Id, m.local(host), m.onDemand)
}

func (m *model) addresses(host int) (n int, exact bool) {
	exact = true
	nets := map[string]bool{}
	for _, p := range m.onHost[host] {
		switch {
		case m.onDemand(p.Net):
			exact = false
		case !nets[p.Net]:
			nets[p.Net] = true
			n += len(m.byNet[p.Net])
		}
	}
	return n, exact
}
