// SPDX-License-Identifier: Apache-2.0

package vhost

import "weft/packet"

// offloadFeatures are the feature bits of partial checksums and of segmentation offloads (large frames).
// The session offers them unless Config.NoOffloads is set. UFO is never offered: see docs/decisions.
const offloadFeatures uint64 = FeatureChecksum | FeatureGuestChecksum |
	FeatureGuestTSO4 | FeatureGuestTSO6 | FeatureGuestECN | FeatureHostTSO4 | FeatureHostTSO6 | FeatureHostECN |
	FeatureGuestUSO4 | FeatureGuestUSO6 | FeatureHostUSO

// fromGuest returns the offloads that frames of a guest with these features may use.
func fromGuest(features uint64) packet.Offloads {
	o := packet.Offloads(0)
	if features&FeatureChecksum == 0 {
		return 0 // all other transmit offloads depend on VIRTIO_NET_F_CSUM (virtio 1.2 section 5.1.3.1)
	}
	return o | packet.TakesPartial |
		ifSet(features, FeatureHostTSO4, packet.TakesTCPv4) |
		ifSet(features, FeatureHostTSO6, packet.TakesTCPv6) |
		ifSet(features, FeatureHostECN, packet.TakesECN) |
		ifSet(features, FeatureHostUSO, packet.TakesUDP)
}

// toGuest returns the offloads that frames to a guest with these features may use.
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

// Offloads implements port.Tx. The guest's features decide the value, once, when the device opens.
func (q *tx) Offloads() packet.Offloads { return q.offloads }

// hasOffload reports whether frame f needs a virtio-net header that is not all zero.
func (q *tx) hasOffload(f *packet.Frame) bool {
	return q.offloads != 0 && (f.Offload.Flags != 0 || f.Offload.GSO != packet.GSONone)
}
