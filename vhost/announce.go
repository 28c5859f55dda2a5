package vhost

import "weft/packet"

// announcement is a RARP request of a guest for itself (RFC 903), by which
// switches learn where it is now. Nobody answers it.
func announcement(mac []byte) []byte {
	f := make([]byte, 60)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(f[6:], mac)
	copy(f[12:], []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3}) // Ethernet, IPv4, request reverse
	copy(f[22:], mac)
	copy(f[32:], mac)
	return f
}

// recvAnnouncement receives the announcement, once.
func (q *rx) recvAnnouncement(b *packet.Batch) int {
	if b.N == packet.BatchSize {
		return 0
	}
	f, header := b.Next()
	b.Commit(f, copy(header[:packet.InnerHeader], q.announce))
	q.announce = nil
	return 1
}
