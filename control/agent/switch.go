// SPDX-License-Identifier: Apache-2.0

// Package agent is the part of weft-central that runs on each host. It follows a hub,
// which sends the declared networks and ports. It saves what the hub has sent, and
// programs the switch for the ports of this host. docs/decisions/0033 has the design.
//
// The agent uses the switch only through the interface Switch, so that a test can run
// a thousand agents with simulated switches.
package agent

import "net/netip"

// Switch is the switch that an agent programs. Control implements it.
type Switch interface {
	// Apply applies the changes in order. When it returns, no frame is forwarded
	// according to the old state. An error is one line for the operator that names
	// what could not be applied; everything else is applied.
	Apply(changes *Changes) error
	// Ports returns the names and ids of the switch's ports that may be declared.
	Ports() []LocalPort
}

// LocalPort is a port of the switch that an operator has added and that may be
// declared.
type LocalPort struct {
	Name string
	ID   string // option id= of the port; "": none
	Up   bool
	// Added is another number each time an operator adds a port of this name. If it
	// differs from the known one, the port has been deleted and added again, and has
	// lost its declaration.
	Added uint64
}

// Changes is one batch of changes. The switch applies Endpoint, Nets and Ports before
// the lists of addresses.
type Changes struct {
	Endpoint  netip.Addr // the host's own VXLAN endpoint; invalid: the endpoint does not change
	Nets      []Net
	Ports     []Port
	Removed   []RemovedAddress // removed addresses; applied before Addresses, so that an address can be removed and added again in one batch
	Addresses []Address
	Unknown   []UnknownAddress
}

// Net is a network in which this host has ports.
type Net struct {
	VNI  uint32
	Gone bool // this host has no port in the network any more: the switch forgets the network and its addresses
	// If Flood is true, broadcasts and frames to unknown addresses go to the hosts in
	// Members and to the local ports. Otherwise they go only to the local ports.
	Flood bool
	// The switch calls Events.Ask for addresses of this network that it does not
	// know. If there is no answer and Asked is true, the switch drops the frame:
	// central has addresses that it does not send without a question. If Asked is
	// false, central sends all addresses by itself, perhaps late, and the switch
	// handles the frame as one to an unknown address.
	Asked   bool
	Members []netip.Addr // endpoints of the other hosts, sorted
}

// Port puts a local port into a network.
type Port struct {
	Name string // of the local port
	Gone bool   // the port is not declared any more: it forwards nothing
	VNI  uint32
	MAC  uint64 // 48 bits
	IPs  []netip.Addr
	// If Unchecked is true, the port may send from any address.
	Unchecked bool
}

// Address is a declared MAC address with its IP addresses, and the place where frames
// to it go: a port of this host, or another host.
type Address struct {
	VNI    uint32
	MAC    uint64 // 48 bits
	IPs    []netip.Addr
	Remote netip.Addr // VXLAN endpoint of the host that has the address; invalid: this host has it, at the port named Port
	Port   string     // name of the local port
	// Generation grows each time the address moves to another host. The switch
	// ignores an Address with a smaller generation than the known one.
	Generation int64
}

// RemovedAddress removes the address with the MAC address MAC, unless the known one
// has a larger generation.
type RemovedAddress struct {
	VNI        uint32
	MAC        uint64
	Generation int64 // of the place that is removed
}

// UnknownAddress is the answer to Events.Ask if nobody has the address. Frames that
// wait for the answer are then forwarded as frames to an unknown address.
type UnknownAddress struct {
	VNI uint32
	MAC uint64 // if IP is invalid
	IP  netip.Addr
}

// Events has the events that a switch reports to its agent. The methods do not wait.
type Events interface {
	// PortsChanged: Ports has a new result.
	PortsChanged()
	// Seen reports the first frame that a port sends after Changes put the port into
	// its network.
	Seen(port string)
	// Ask reports that a frame of a port waits because the switch does not know its
	// address: the IP address ip, or the MAC address mac if ip is invalid. The answer
	// comes later as an Address or an UnknownAddress. Ask returns false if no answer
	// will come, for example because the port has too many unanswered questions; the
	// frame is then dropped, or handled as one to an unknown address (Net.Asked).
	Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool
}
