// SPDX-License-Identifier: Apache-2.0

// Package agent is the part of weft-central on each host. It follows a hub, saves the
// declared state that the hub sends, and programs the switch (docs/decisions/0033).
//
// Through the interface Switch, one test can run a thousand agents with simulated
// switches.
package agent

import "net/netip"

// Switch is the switch that an agent programs. The control process implements it.
type Switch interface {
	// Apply applies the changes in order. When it returns, no frame uses the old state.
	// The error names the changes that were not applied, in one line.
	Apply(changes *Changes) error
	// Ports returns the switch's ports that weft-central may declare.
	Ports() []LocalPort
	// Trouble returns the reason why no frame reaches another host, in one line, or "" if there is none.
	Trouble() string
}

// LocalPort is a port of the switch that weft-central may declare.
type LocalPort struct {
	Name string
	ID   string // option id= of the port; "": none
	Up   bool
	// Added is a number that changes when a port is deleted and added again. The agent must then send the
	// port's declaration again.
	Added uint64
}

// Changes is one batch of changes for the switch. Endpoint, Nets and Ports are applied
// before the addresses.
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
	Gone bool // the host has no port here any more; the switch forgets the network and its addresses
	// Flood sends broadcasts and frames to unknown addresses to Members and the local
	// ports. Without Flood, they go only to the local ports.
	Flood bool
	// Asked decides what happens to a frame to an unknown address if Events.Ask gets no answer. If Asked
	// is true, weft-central sends the addresses of this network only on request, and the switch drops the
	// frame. If Asked is false, weft-central sends all addresses by itself, perhaps late. The switch then
	// floods the frame as Flood says.
	Asked   bool
	Members []netip.Addr // endpoints of the other hosts, sorted
	// Services has the settings that this host itself tells the guests of the network; nil: none.
	Services *Services
}

// Port puts a local port into a network.
type Port struct {
	Name string // of the local port
	Gone bool   // the port is not declared any more and forwards nothing
	VNI  uint32
	MAC  uint64 // 48 bits
	IPs  []netip.Addr
	// Unchecked lets the guest send frames from any address.
	Unchecked bool
	Guest     string    // name that the guest is told; "": none
	Services  *Services // of the network; nil: none
	// Groups are the groups whose rules filter the port's frames. Without groups, they are not filtered.
	Groups []Group
}

// Address is a declared MAC address with its IP addresses and location: a port of this
// host, or another host.
type Address struct {
	VNI    uint32
	MAC    uint64 // 48 bits
	IPs    []netip.Addr
	Remote netip.Addr // the host's VXLAN endpoint; invalid: this host, at Port
	Port   string     // name of the local port
	// Generation grows with each move of the address. The switch ignores a declaration
	// with a smaller generation.
	Generation int64
	Groups     []string // ids of the groups of the address's port
}

// RemovedAddress removes a MAC address, unless the switch has a newer declaration of the address, with a
// larger generation.
type RemovedAddress struct {
	VNI        uint32
	MAC        uint64
	Generation int64 // of the place that is removed
}

// UnknownAddress is the answer to Events.Ask that nobody has the address. The switch then floods the
// waiting frames as Net.Flood says.
type UnknownAddress struct {
	VNI uint32
	MAC uint64 // if IP is invalid
	IP  netip.Addr
}

// Events has the methods through which the switch informs the agent. They do not block.
type Events interface {
	// PortsChanged says that Switch.Ports has a new result.
	PortsChanged()
	// Seen reports the first frame of a port in its network.
	Seen(port string)
	// Ask asks for the location of the IP address ip or, if ip is invalid, of the MAC address mac, because
	// a frame waits for it. The answer is an Address or an UnknownAddress in a later call of Switch.Apply.
	// Ask returns false if no answer will come, for example because too many questions of the port are
	// unanswered. Net.Asked says what happens to the frame then.
	Ask(port string, vni uint32, mac uint64, ip netip.Addr) bool
}
