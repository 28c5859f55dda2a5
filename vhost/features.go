// SPDX-License-Identifier: Apache-2.0

package vhost

// Virtio feature bits that the switch offers (virtio 1.2 sections 5.1.3 and 6), and the
// vhost-user bit VHOST_USER_F_PROTOCOL_FEATURES.
const (
	FeatureChecksum         = 1 << 0 // VIRTIO_NET_F_CSUM: the device completes unfinished checksums of the driver
	FeatureGuestChecksum    = 1 << 1 // VIRTIO_NET_F_GUEST_CSUM: the driver accepts unfinished checksums
	FeatureNetMTU           = 1 << 3
	FeatureGuestTSO4        = 1 << 7
	FeatureGuestTSO6        = 1 << 8
	FeatureGuestECN         = 1 << 9
	FeatureHostTSO4         = 1 << 11
	FeatureHostTSO6         = 1 << 12
	FeatureHostECN          = 1 << 13
	FeatureMergeable        = 1 << 15 // VIRTIO_NET_F_MRG_RXBUF
	FeatureNetStatus        = 1 << 16
	FeatureControlQueue     = 1 << 17
	FeatureControlRx        = 1 << 18
	FeatureGuestAnnounce    = 1 << 21
	FeatureMultiQueue       = 1 << 22
	FeatureControlMAC       = 1 << 23
	FeatureNotifyOnEmpty    = 1 << 24 // legacy devices only
	FeatureLogAll           = 1 << 26 // VHOST_F_LOG_ALL
	FeatureAnyLayout        = 1 << 27
	FeatureIndirect         = 1 << 28
	FeatureEventIndex       = 1 << 29
	FeatureProtocolFeatures = 1 << 30 // VHOST_USER_F_PROTOCOL_FEATURES
	FeatureVersion1         = 1 << 32
	FeatureRingPacked       = 1 << 34
	FeatureInOrder          = 1 << 35
	FeatureGuestUSO4        = 1 << 54
	FeatureGuestUSO6        = 1 << 55
	FeatureHostUSO          = 1 << 56
)

// featureNames has the names of feature bits that Status shows, in the order of the bits.
var featureNames = []struct {
	bit  uint64
	name string
}{
	{FeatureChecksum, "csum"},
	{FeatureGuestChecksum, "guest_csum"},
	{FeatureNetMTU, "mtu"},
	{FeatureGuestTSO4, "guest_tso4"},
	{FeatureGuestTSO6, "guest_tso6"},
	{FeatureGuestECN, "guest_ecn"},
	{FeatureHostTSO4, "host_tso4"},
	{FeatureHostTSO6, "host_tso6"},
	{FeatureHostECN, "host_ecn"},
	{FeatureMergeable, "mrg_rxbuf"},
	{FeatureNetStatus, "status"},
	{FeatureControlQueue, "ctrl_vq"},
	{FeatureControlRx, "ctrl_rx"},
	{FeatureGuestAnnounce, "guest_announce"},
	{FeatureMultiQueue, "mq"},
	{FeatureControlMAC, "ctrl_mac_addr"},
	{FeatureNotifyOnEmpty, "notify_on_empty"},
	{FeatureLogAll, "log_all"},
	{FeatureAnyLayout, "any_layout"},
	{FeatureIndirect, "indirect_desc"},
	{FeatureEventIndex, "event_idx"},
	{FeatureProtocolFeatures, "protocol_features"},
	{FeatureVersion1, "version_1"},
	{FeatureRingPacked, "ring_packed"},
	{FeatureInOrder, "in_order"},
	{FeatureGuestUSO4, "guest_uso4"},
	{FeatureGuestUSO6, "guest_uso6"},
	{FeatureHostUSO, "host_uso"},
}

// FeatureNames returns the names of the feature bits that are set in features.
func FeatureNames(features uint64) []string {
	var names []string
	for _, f := range featureNames {
		if features&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// ringFeatures are the features that the rings of this package implement.
const ringFeatures uint64 = FeatureMergeable | FeatureAnyLayout | FeatureIndirect | FeatureEventIndex | FeatureVersion1 |
	FeatureRingPacked | FeatureInOrder | FeatureNotifyOnEmpty

// Protocol feature bits of vhost-user, VHOST_USER_PROTOCOL_F_*.
const (
	ProtocolMultiQueue  = 1 << 0
	ProtocolLogMemory   = 1 << 1 // LOG_SHMFD
	ProtocolRARP        = 1 << 2
	ProtocolReplyAck    = 1 << 3
	ProtocolMTU         = 1 << 4
	ProtocolBackendReq  = 1 << 5
	ProtocolInflight    = 1 << 12 // INFLIGHT_SHMFD
	ProtocolResetDevice = 1 << 13
	ProtocolMemorySlots = 1 << 15
	ProtocolStatus      = 1 << 16
)

// Limits of a device. The session refuses a message that exceeds a limit, and Open
// refuses a specification that exceeds one.
const (
	// MaxQueuePairs is the largest number of queue pairs of a device. The messages
	// about eventfds have a vring index of 8 bits.
	MaxQueuePairs = 128
	// MaxRegions is the largest number of memory regions of a guest. It is the answer
	// to GET_MAX_MEM_SLOTS.
	MaxRegions = 32
	// MaxRingSize is the largest number of descriptors of a ring (virtio 1.2 sections
	// 2.7 and 2.8).
	MaxRingSize = 32768
)
