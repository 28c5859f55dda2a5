package conntrack

import "weft/packet"

// Protocols without a state of their own: a connection is what was heard from
// one side, or from both.

// classOfSimple is the timeout that runs for a connection of proto.
func classOfSimple(proto uint8, flags uint16) Class {
	replied := flags&connReplied != 0
	switch proto {
	case packet.ProtoUDP:
		switch {
		case replied:
			return UDPMultiple
		case flags&connSeen != 0:
			return UDPSingle
		}
		return UDPFirst
	case packet.ProtoICMP, packet.ProtoICMPv6:
		if replied {
			return ICMPReply
		}
		return ICMPFirst
	}
	if replied {
		return OtherMultiple
	}
	return OtherFirst
}
