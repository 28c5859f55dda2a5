// SPDX-License-Identifier: Apache-2.0

package openflow

// Version is a version of OpenFlow, with its number in the header of a message.
type Version uint8

// Versions that Weft speaks.
const (
	Version10 Version = 1
	Version13 Version = 4
	Version14 Version = 5
	Version15 Version = 6
)

// portOffset is added to a reserved port number of OpenFlow 1.0 (16 bits) to get the number of OpenFlow 1.1
// and later (32 bits).
const portOffset = 0xffff0000

// WirePort returns a port number as OpenFlow 1.1 and later write it.
func WirePort(number uint32) uint32 {
	if number >= PortMax && number <= PortNone {
		return number + portOffset
	}
	return number
}

// PortFromWire returns the port number of Weft, which has 16 bits, for a number of OpenFlow 1.1 or later. ok
// is false if no port can have the number.
func PortFromWire(number uint32) (port uint32, ok bool) {
	switch {
	case number < PortMax:
		return number, true
	case number >= portOffset+PortMax:
		return number - portOffset, true
	}
	return 0, false
}
