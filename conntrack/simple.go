// SPDX-License-Identifier: Apache-2.0

package conntrack

import "weft/packet"

// This file tracks protocols other than TCP and SCTP. The state of such a connection is only whether one
// or both sides have sent frames.

// classOfSimple returns the timeout class of a connection that is neither TCP nor SCTP.
func classOfSimple(proto uint8, flags uint16) Class {
	replied := flags&connReplied != 0
	switch proto {
	case packet.ProtoUDP:
		switch {
		case replied:
			return udpMultiple
		case flags&connSeen != 0:
			return udpSingle
		}
		return udpFirst
	case packet.ProtoICMP, packet.ProtoICMPv6:
		if replied {
			return icmpReply
		}
		return icmpFirst
	}
	if replied {
		return otherMultiple
	}
	return otherFirst
}
