// SPDX-License-Identifier: Apache-2.0

package vhost

import "weft/packet"

// announcement returns a RARP request (RFC 903) with the guest's MAC address as its
// source. Switches learn the guest's new location from it after a migration.
func announcement(mac []byte) []byte {
	f := make([]byte, 60)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(f[6:], mac)
	copy(f[12:], []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3}) // EtherType RARP; Ethernet, IPv4, operation "request reverse"
	copy(f[22:], mac)
	copy(f[32:], mac)
	return f
}

// recvAnnouncement appends the RARP frame in q.announce to the batch. It returns the
// number of appended frames, which is 0 if the batch is full.
func (q *rx) recvAnnouncement(b *packet.Batch) int {
	if b.N == packet.BatchSize {
		return 0
	}
	f, header := b.Next()
	b.Commit(f, copy(header[:packet.InnerHeader], q.announce))
	q.announce = nil
	return 1
}
