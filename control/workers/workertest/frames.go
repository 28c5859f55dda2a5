// SPDX-License-Identifier: Apache-2.0

package workertest

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

// UDPKey returns the flow key of a UDP datagram that arrives from port number port. It goes from host src
// and UDP port 1000 to host dst and UDP port tpDst.
func UDPKey(port, src, dst uint32, tpDst uint16) flowtable.Key {
	var k flowtable.Key
	k.SetInPort(uint32(port))
	k[flowtable.WEthDst] = (0x020000000000|uint64(dst))<<16 | 0x0800
	k[flowtable.WEthSrc] = (0x020000000000 | uint64(src)) << 16
	k[flowtable.WIP] = 17<<56 | 64<<40
	k[flowtable.WL4] = 1000<<48 | uint64(tpDst)<<32
	k[flowtable.WIPv4] = uint64(0x0a000000|src)<<32 | uint64(0x0a000000|dst)
	return k
}

// UDPFrame returns a frame of n bytes from host 1 to host 2, with the ports 7 and 9.
func UDPFrame(n int) []byte {
	f := make([]byte, n)
	packet.Ethernet(f).SetDst(0x020000000002)
	packet.Ethernet(f).SetSrc(0x020000000001)
	packet.Ethernet(f).SetType(packet.EtherTypeIPv4)
	copy(f[14:], []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9})
	binary.BigEndian.PutUint16(f[16:], uint16(n-14))
	binary.BigEndian.PutUint16(f[38:], uint16(n-34))
	return f
}
