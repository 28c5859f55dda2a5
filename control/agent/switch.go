// SPDX-License-Identifier: Apache-2.0

// Package agent is a host's side of weft-central. It follows a hub, keeps what the hub
// said on disk, and programs the switch with what the host's declared ports need.
// docs/decisions/0033 has the design.
//
// The agent knows the switch as a Switch only, so a test can run a thousand agents
// against recorders.
package agent

import "net/netip"

// Switch is the switch that an agent programs. Control implements it.
type Switch interface {
	// Apply applies the changes in order. When it returns, no frame is forwarded by the
	// state before. An error is one line for the operator and says what could not be
	// applied; everything else is applied.
	Apply(changes *Changes) error
	// Ports returns the names and ids of the switch's ports that may be declared.
	Ports() []LocalPort
}

// LocalPort is a port of the switch that an operator has added.
type LocalPort struct {
	Name string
	ID   string // option id= of the port; "": none
	Up   bool
	// Added differs from that of an earlier port of the name, which was deleted: the new
	// port knows nothing of what the earlier one was told.
	Added uint64
}

// Changes is one batch of changes. The switch applies Endpoint, Nets, Ports and the
// addresses in this order.
type Changes struct {
	Endpoint  netip.Addr // the host's own VXLAN endpoint; invalid: as before
	Nets      []Net
	Ports     []Port
	Removed   []RemovedAddress // before Addresses, which may have the same addresses again
	Addresses []Address
	Unknown   []UnknownAddress
}

// Net is a network that the host takes part in.
type Net struct {
	VNI  uint32
	Gone bool // the host has no port in it any more: the switch forgets it and its addresses
	// Flood: broadcasts and unknown unicast go to Members and to the local ports.
	// Otherwise to local ports only.
	Flood bool
	// Asked: the switch asks the agent for addresses that it does not know.
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
	// Unchecked: the port may send from any address.
	Unchecked bool
}

// Address is a declared address and its place.
type Address struct {
	VNI    uint32
	MAC    uint64 // 48 bits
	IPs    []netip.Addr
	Remote netip.Addr // endpoint of the host that has it; invalid: Port has it
	Port   string     // name of the local port
	// Generation orders the places of an address: the switch ignores one that is older
	// than what it has.
	Generation int64
}

// RemovedAddress is an address without a place.
type RemovedAddress struct {
	VNI        uint32
	MAC        uint64
	Generation int64 // of the place that is removed
}

// UnknownAddress answers a question: nobody has the address. Frames that wait for it are
// dropped.
type UnknownAddress struct {
	VNI uint32
	MAC uint64 // if IP is invalid
	IP  netip.Addr
}

// Events is what a switch tells its agent. The calls do not wait.
type Events interface {
	// PortsChanged: Ports has a new result.
	PortsChanged()
	// Seen: a port sent its first frame since Changes put it into its network.
	Seen(port string)
	// Ask: a frame of the port waits for an address, a MAC address if ip is invalid.
	// The answer comes as an Address or an UnknownAddress. It returns false if the port has
	// asked too much; the frame is then dropped.
	Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool
}
