// SPDX-License-Identifier: Apache-2.0

package openflow

// Names resolves port names in flow text; nil: no names.
type Names interface {
	// PortByName returns the number of the port with a name.
	PortByName(name string) (number uint32, ok bool)
	// PortName returns the name of a port.
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
	// PortMax is 1 + the highest number of an ordinary port.
	PortMax uint32 = 0xff00
)
