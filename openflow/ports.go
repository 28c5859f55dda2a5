// SPDX-License-Identifier: Apache-2.0

package openflow

// Names translates between the names and the OpenFlow numbers of a bridge's ports, for parsers and
// formatters of flows. A nil Names knows no port. If the value also has a method TLVs, like the result of
// WithTLVs, texts may have the fields tun_metadata.
type Names interface {
	// PortByName returns the OpenFlow number of the port with this name. ok is false if there is none.
	PortByName(name string) (number uint32, ok bool)
	// PortName returns the name of the port with this OpenFlow number. ok is false if there is none.
	PortName(number uint32) (name string, ok bool)
}

// Reserved port numbers in 16 bits, as ovs-ofctl shows them (OpenFlow 1.0).
const (
	PortInPort     uint32 = 0xfff8
	PortTable      uint32 = 0xfff9
	PortNORMAL     uint32 = 0xfffa
	PortFlood      uint32 = 0xfffb
	PortAll        uint32 = 0xfffc
	PortController uint32 = 0xfffd
	PortLocal      uint32 = 0xfffe
	PortNone       uint32 = 0xffff
	// PortMax is the lowest number that no ordinary port can have. Reserved ports have higher numbers.
	PortMax uint32 = 0xff00
)
