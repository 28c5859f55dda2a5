// SPDX-License-Identifier: Apache-2.0

package wire

// MACNumber returns a MAC address, given in network byte order, as a 48-bit number.
func MACNumber(mac []byte) (n uint64) {
	for _, octet := range mac {
		n = n<<8 | uint64(octet)
	}
	return n
}

// MACBytes is the reverse of MACNumber.
func MACBytes(n uint64) []byte {
	mac := make([]byte, 6)
	for i := range mac {
		mac[i] = byte(n >> (40 - 8*i))
	}
	return mac
}
