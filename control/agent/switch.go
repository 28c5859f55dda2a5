// SPDX-License-Identifier: Apache-2.0

// Package agent is the part of weft-central on each host. It follows a hub, saves
// what the hub sends, and programs the switch (docs/decisions/0033).
//
// The interface Switch allows a thousand agents with simulated switches in one test.
package agent

import "net/netip"

// Switch is the switch that an agent programs. Control implements it.
type Switch interface {
	// Apply applies the changes in order. After it, no frame uses the old state. An
	// error names in one line what was not applied.
	Apply(changes *Changes) error
	// Ports returns the ports that may be declared.
	Ports() []LocalPort
}

// LocalPort is a switch port that may be declared.
type LocalPort struct {
	Name string
	ID   string // option id= of the port; "": none
	Up   bool
	// Added changes when a port is deleted and added again; its declaration is then
	// lost.
	Added uint64
}

// Changes is one batch. Endpoint, Nets and Ports come before the addresses.
type Changes struct {
	Endpoint  netip.Addr // the host's VXLAN endpoint; invalid: unchanged
	Nets      []Net
	Ports     []Port
	Removed   []RemovedAddress // applied before Addresses, so that a batch can replace an address
	Addresses []Address
	Unknown   []UnknownAddress
}

// Net is a network in which this host has ports.
type Net struct {
	VNI  uint32
	Gone bool // no port here any more: the switch forgets network and addresses
	// With Flood, broadcasts and frames to unknown addresses go to Members and the
	// local ports, otherwise only to the local ports.
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
	Gone bool   // not declared any more: the port forwards nothing
	VNI  uint32
	MAC  uint64 // 48 bits
	IPs  []netip.Addr
	// Unchecked allows any sender address.
	Unchecked bool
}

// Address is a declared MAC address with IP addresses, at a local port or another
// host.
type Address struct {
	VNI    uint32
	MAC    uint64 // 48 bits
	IPs    []netip.Addr
	Remote netip.Addr // the host's VXLAN endpoint; invalid: this host, at Port
	Port   string     // name of the local port
	// Generation grows with each move. The switch ignores smaller ones.
	Generation int64
}

// RemovedAddress removes a MAC address, unless the known generation is larger.
type RemovedAddress struct {
	VNI        uint32
	MAC        uint64
	Generation int64 // of the place that is removed
}

// UnknownAddress answers Events.Ask: nobody has the address. Waiting frames are
// flooded.
type UnknownAddress struct {
	VNI uint32
	MAC uint64 // if IP is invalid
	IP  netip.Addr
}

// Events are for the agent. The methods do not wait.
type Events interface {
	// PortsChanged: Ports has a new result.
	PortsChanged()
	// Seen reports a port's first frame in its network.
	Seen(port string)
	// Ask asks for the IP address ip, or the MAC address mac if ip is invalid, while
	// a frame waits. An Address or an UnknownAddress follows. Ask returns false if no
	// answer will come, for example at the port's limit; the frame is then dropped,
	// or handled as unknown (Net.Asked).
	Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool
}
