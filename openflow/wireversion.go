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

// portOffset is the difference between the numbers of a reserved port in OpenFlow 1.0 (16 bits) and in later
// versions (32 bits).
const portOffset = 0xffff0000

// WirePort returns the number with which OpenFlow 1.1 and later encode a port.
func WirePort(number uint32) uint32 {
	if number >= PortMax && number <= PortNone {
		return number + portOffset
	}
	return number
}

// PortFromWire returns the port for a number of OpenFlow 1.1 or later. Weft uses the 16-bit numbers of
// OpenFlow 1.0. ok is false if no port can have the number.
func PortFromWire(number uint32) (port uint32, ok bool) {
	switch {
	case number < PortMax:
		return number, true
	case number >= portOffset+PortMax:
		return number - portOffset, true
	}
	return 0, false
}
