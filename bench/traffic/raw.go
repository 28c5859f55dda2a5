// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
)

// frameHeaders is the length in bytes of the headers of a raw frame. The frame is UDP over IPv4,
// between addresses for tests (RFC 2544 appendix C.2.2). The switch finds a UDP flow in it, but no
// host's IP stack answers.
const frameHeaders = 14 + 20 + 8

// framer writes the headers of raw frames in one direction.
type framer struct {
	head       [frameHeaders]byte
	sum        uint32 // sum of the IPv4 header without the length
	flows      uint64
	clientPort int // offset of the client's UDP port: source port of the client's frames
}

// Offsets of the ports in a frame.
const sourcePortAt, destinationPortAt = 34, 36

func newFramer(from, to net.HardwareAddr, server bool, flows int) *framer {
	f := &framer{flows: uint64(flows), clientPort: sourcePortAt}
	copy(f.head[:], to)
	copy(f.head[6:], from)
	ip := f.head[14:34]
	copy(f.head[12:], []byte{8, 0, 0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17}) // don't fragment, TTL 64, UDP
	copy(ip[12:], []byte{198, 18, 0, 1, 198, 18, 0, 2})
	if server {
		ip[15], ip[19] = 2, 1
		f.clientPort = destinationPortAt
	}
	for i := 0; i < len(ip); i += 2 {
		f.sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	return f
}

func (*framer) headers() int { return frameHeaders }

// dress writes the headers of frame number n. The frame belongs to flow n modulo the number of flows.
// The UDP checksum is 0, which IPv4 allows (RFC 768).
func (f *framer) dress(frame []byte, n uint64) {
	copy(frame, f.head[:])
	length := uint32(len(frame) - 14)
	binary.BigEndian.PutUint16(frame[16:], uint16(length))
	sum := f.sum + length
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(frame[24:], ^uint16(sum+sum>>16))
	flow := uint32(n % f.flows)
	binary.BigEndian.PutUint16(frame[f.clientPort:], uint16(1024+flow&0x3fff))
	binary.BigEndian.PutUint16(frame[sourcePortAt+destinationPortAt-f.clientPort:], uint16(2048+flow>>14))
	binary.BigEndian.PutUint16(frame[38:], uint16(length-20))
}

// link is a transport for raw frames: a network device or a vhost-user socket.
type link interface {
	transport
	address() net.HardwareAddr
	// towards sets the destination MAC address of the frames, whether this end is the server, and the
	// number of flows. It is called before the first frame.
	towards(peer net.HardwareAddr, server bool, flows int)
}

// openLink opens a link by its name. A name with a slash is the path of a vhost-user
// socket, any other name is a network device.
func openLink(name string, s *Spec) (link, error) {
	if strings.Contains(name, "/") {
		return openGuest(name, s)
	}
	return openDevice(name, s)
}

// CheckLink returns an error if the named link does not exist.
func CheckLink(name string) error {
	if strings.Contains(name, "/") {
		if info, err := os.Stat(name); err == nil && info.Mode()&os.ModeSocket == 0 {
			return fmt.Errorf("%s is not a socket; expected a device or the path of a vhost-user socket", name)
		}
		if folder := filepath.Dir(name); folder != "." {
			if _, err := os.Stat(folder); err != nil {
				return fmt.Errorf("%s: there is no folder %s", name, folder)
			}
		}
		return nil
	}
	if _, err := net.InterfaceByName(name); err != nil {
		return fmt.Errorf("%s: no such device; expected one of this namespace or, with a slash, the path of a vhost-user socket", name)
	}
	return nil
}
