// SPDX-License-Identifier: Apache-2.0

package vhost

import "weft/packet"

// announcement returns the broadcast frame of a RARP request (RFC 903) in the name of
// the guest with this MAC address. Nobody answers the request. Switches learn from
// its source address at which port the guest is after a migration.
func announcement(mac []byte) []byte {
	f := make([]byte, 60)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(f[6:], mac)
	copy(f[12:], []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3}) // EtherType RARP; Ethernet, IPv4, operation "request reverse"
	copy(f[22:], mac)
	copy(f[32:], mac)
	return f
}

// recvAnnouncement appends the RARP frame in q.announce to the batch and clears
// q.announce. It returns the number of frames appended: 0 if the batch is full.
func (q *rx) recvAnnouncement(b *packet.Batch) int {
	if b.N == packet.BatchSize {
		return 0
	}
	f, header := b.Next()
	b.Commit(f, copy(header[:packet.InnerHeader], q.announce))
	q.announce = nil
	return 1
}
