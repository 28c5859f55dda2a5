// SPDX-License-Identifier: Apache-2.0

package vhost

import "weft/packet"

// offloadFeatures are the feature bits for unfinished checksums and large segments.
// The session offers them unless the port's offloads are off. UFO is not offered: see
// docs/decisions.
const offloadFeatures uint64 = FeatureChecksum | FeatureGuestChecksum |
	FeatureGuestTSO4 | FeatureGuestTSO6 | FeatureGuestECN | FeatureHostTSO4 | FeatureHostTSO6 | FeatureHostECN |
	FeatureGuestUSO4 | FeatureGuestUSO6 | FeatureHostUSO

// fromGuest returns the work that a guest with these features may leave to the
// switch.
func fromGuest(features uint64) packet.Offloads {
	o := packet.Offloads(0)
	if features&FeatureChecksum == 0 {
		return 0 // the other features depend on it (virtio 1.2 section 5.1.3.1)
	}
	return o | packet.TakesPartial |
		ifSet(features, FeatureHostTSO4, packet.TakesTCPv4) |
		ifSet(features, FeatureHostTSO6, packet.TakesTCPv6) |
		ifSet(features, FeatureHostECN, packet.TakesECN) |
		ifSet(features, FeatureHostUSO, packet.TakesUDP)
}

// toGuest returns the work that the switch may leave to a guest with these features.
func toGuest(features uint64) packet.Offloads {
	if features&FeatureGuestChecksum == 0 {
		return 0
	}
	return packet.TakesPartial |
		ifSet(features, FeatureGuestTSO4, packet.TakesTCPv4) |
		ifSet(features, FeatureGuestTSO6, packet.TakesTCPv6) |
		ifSet(features, FeatureGuestECN, packet.TakesECN) |
		ifSet(features, FeatureGuestUSO4|FeatureGuestUSO6, packet.TakesUDP)
}

func ifSet(features, bits uint64, o packet.Offloads) packet.Offloads {
	if features&bits == bits {
		return o
	}
	return 0
}

// Offloads implements port.Tx.
func (q *tx) Offloads() packet.Offloads { return q.takes }

// hasOffload reports whether the virtio-net header of f must have values other than
// 0.
func (q *tx) hasOffload(f *packet.Frame) bool {
	return q.takes != 0 && (f.Offload.Flags != 0 || f.Offload.GSO != packet.GSONone)
}
