// SPDX-License-Identifier: Apache-2.0

package vhost

import "weft/packet"

// announcement returns a RARP request in which a guest asks for its own address (RFC
// 903). Nobody answers it. Switches learn from it on which port the guest is now.
func announcement(mac []byte) []byte {
	f := make([]byte, 60)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(f[6:], mac)
	copy(f[12:], []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3}) // EtherType RARP, hardware Ethernet, protocol IPv4, operation "request reverse"
	copy(f[22:], mac)
	copy(f[32:], mac)
	return f
}

// recvAnnouncement appends the announcement to the batch and clears it. It returns
// the number of frames appended: 0 if the batch is full.
func (q *rx) recvAnnouncement(b *packet.Batch) int {
	if b.N == packet.BatchSize {
		return 0
	}
	f, header := b.Next()
	b.Commit(f, copy(header[:packet.InnerHeader], q.announce))
	q.announce = nil
	return 1
}
