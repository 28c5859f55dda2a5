// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"weft/control/lacp"
)

// slowLink sends and receives the slow-protocol frames (IEEE 802.3 annex 57A) of a device. slowSocket
// implements it.
type slowLink interface {
	// receive returns the payload of the next frame, or nil if there is none. It writes into buf, so the
	// payload is valid until the next call.
	receive(buf []byte) []byte
	send(pdu *lacp.PDU) error
	// mac returns the MAC address that the device had when the link was opened.
	mac() [6]byte
	close()
}

// slowSocket is a packet socket of the control process that takes only a device's LACP frames. It
// gets them before the BPF program at the ingress of a port of type=device. The port's own sockets
// may get them as well. So neither a busy worker nor the death of an engine delays LACP.
type slowSocket struct {
	fd      int
	address [6]byte
}

// slowSocketBytes is the size of the socket's receive queue. The process reads the queue every
// lacpInterval. The kernel drops frames that arrive faster.
const slowSocketBytes = 16 << 10

const (
	slowHeader   = 14
	loadHalf     = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
	loadWord     = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	jumpEqual    = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	returnValue  = unix.BPF_RET | unix.BPF_K
	adVLANTagged = 0xfffff000 + 48 // SKF_AD_OFF + SKF_AD_VLAN_TAG_PRESENT
)

// slowFilter accepts frames without a VLAN tag that have the destination lacp.Group and the type
// lacp.EtherType.
var slowFilter = []unix.SockFilter{
	{Code: loadHalf, K: 12}, {Code: jumpEqual, K: lacp.EtherType, Jf: 7},
	{Code: loadWord, K: 0}, {Code: jumpEqual, K: 0x0180c200, Jf: 5},
	{Code: loadHalf, K: 4}, {Code: jumpEqual, K: 0x0002, Jf: 3},
	{Code: loadWord, K: adVLANTagged}, {Code: jumpEqual, K: 0, Jf: 1},
	{Code: returnValue, K: slowHeader + lacp.PDULen},
	{Code: returnValue, K: 0},
}

// openSlow opens a socket for the LACP frames of the device with this interface index.
func openSlow(index int) (slowLink, error) {
	// With protocol 0 the socket receives nothing before it has its filter.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, errors.New("missing privilege: packet sockets need CAP_NET_RAW")
	}
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	s := &slowSocket{fd: fd}
	if err := s.set(index); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *slowSocket) set(index int) error {
	program := unix.SockFprog{Len: uint16(len(slowFilter)), Filter: &slowFilter[0]}
	if err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	for _, o := range []struct{ level, name, value int }{
		{unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1}, {unix.SOL_SOCKET, unix.SO_RCVBUF, slowSocketBytes},
		{unix.SOL_SOCKET, unix.SO_PRIORITY, 7}, // TC_PRIO_CONTROL: sent before other frames that wait
	} {
		if err := unix.SetsockoptInt(s.fd, o.level, o.name, o.value); err != nil {
			return fmt.Errorf("socket option %d: %w", o.name, err)
		}
	}
	// With ETH_P_ALL the socket gets frames before the BPF program at the ingress of the device. A
	// socket for one protocol gets them after it.
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8
	if err := unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	name, err := unix.Getsockname(s.fd)
	if err != nil {
		return fmt.Errorf("address: %w", err)
	}
	link, ok := name.(*unix.SockaddrLinklayer)
	if !ok || int(link.Halen) != len(s.address) {
		return errors.New("the device has no MAC address")
	}
	copy(s.address[:], link.Addr[:])
	return nil
}

func (s *slowSocket) receive(buf []byte) []byte {
	for {
		n, _, err := unix.Recvfrom(s.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil || n < slowHeader: // EAGAIN: no frame; ENETDOWN: the port's own check finds this too
			return nil
		default:
			return buf[slowHeader:n]
		}
	}
}

func (s *slowSocket) send(pdu *lacp.PDU) error {
	frame := append(make([]byte, 0, slowHeader+lacp.PDULen), lacp.Group[:]...)
	frame = append(frame, s.address[:]...)
	frame = append(frame, lacp.EtherType>>8, lacp.EtherType&0xff)
	_, err := unix.Write(s.fd, pdu.Append(frame))
	return err
}

func (s *slowSocket) mac() [6]byte { return s.address }

func (s *slowSocket) close() { _ = unix.Close(s.fd) }
