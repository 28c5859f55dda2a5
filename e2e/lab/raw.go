// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Raw is a packet socket on a device of a host.
type Raw struct {
	dev string
	fd  int
}

// Raw opens a packet socket on device dev. The device's queue of 1,000 frames is too
// short if the switch is slow, so Raw makes it longer.
func (h *Host) Raw(dev string) *Raw {
	h.lab.T.Helper()
	h.Run("ip", "link", "set", "dev", dev, "txqueuelen", "10000")
	r := &Raw{dev: h.Name + "/" + dev, fd: -1}
	err := h.Do(func() (err error) { r.fd, err = openRaw(dev); return err })
	if err != nil {
		h.lab.T.Fatalf("%s: packet socket: %v", r.dev, err)
	}
	h.lab.cleanup(func() { unix.Close(r.fd) })
	return r
}

func openRaw(dev string) (int, error) {
	nic, err := net.InterfaceByName(dev)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	all := uint16(unix.ETH_P_ALL)
	addr := &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: nic.Index}
	for _, err := range []error{
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
		// The kernel moves a frame's VLAN tag into the auxiliary data of the received message.
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.Bind(fd, addr),
	} {
		if err != nil {
			unix.Close(fd)
			return -1, err
		}
	}
	return fd, nil
}

// Send sends an Ethernet frame.
func (r *Raw) Send(frame []byte) error {
	for {
		_, err := unix.Write(r.fd, frame)
		switch {
		case err == unix.EINTR:
		case err == unix.ENOBUFS: // the device's queue is full
			time.Sleep(time.Millisecond)
		case err != nil:
			return fmt.Errorf("%s: send %d bytes: %w", r.dev, len(frame), err)
		default:
			return nil
		}
	}
}

// ErrTimeout means that no frame has arrived in time.
var ErrTimeout = errors.New("no frame came in time")

// Recv returns the next received frame, with its VLAN tag, or ErrTimeout. It skips
// frames that this host has sent.
func (r *Raw) Recv(limit time.Duration) ([]byte, error) {
	buf := make([]byte, 1<<16)
	oob := make([]byte, 128)
	for end := time.Now().Add(limit); ; {
		left := time.Until(end)
		if left <= 0 {
			return nil, ErrTimeout
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err == unix.EINTR || (err == nil && n == 0) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: poll: %w", r.dev, err)
		}
		n, oobn, _, from, err := unix.Recvmsg(r.fd, buf, oob, unix.MSG_DONTWAIT)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: receive: %w", r.dev, err)
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		return putTag(buf[:n], oob[:oobn])
	}
}

// Match receives frames until f returns true for one, and returns that frame. If none comes
// within limit, it returns ErrTimeout.
func (r *Raw) Match(limit time.Duration, f func(frame []byte) bool) ([]byte, error) {
	for end := time.Now().Add(limit); ; {
		frame, err := r.Recv(time.Until(end))
		if err != nil || f(frame) {
			return frame, err
		}
	}
}

// Sizes and offsets in bytes of fields in struct tpacket_auxdata (packet(7)).
const (
	auxStatus = 0
	auxTCI    = 16
	auxTPID   = 18
)

// putTag puts the VLAN tag from the auxiliary data oob back into the frame.
func putTag(frame, oob []byte) ([]byte, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		if m.Header.Level != unix.SOL_PACKET || m.Header.Type != unix.PACKET_AUXDATA || len(m.Data) < 20 {
			continue
		}
		status := binary.NativeEndian.Uint32(m.Data[auxStatus:])
		if status&unix.TP_STATUS_VLAN_VALID == 0 {
			continue
		}
		tag := binary.BigEndian.AppendUint16(nil, binary.NativeEndian.Uint16(m.Data[auxTPID:]))
		tag = binary.BigEndian.AppendUint16(tag, binary.NativeEndian.Uint16(m.Data[auxTCI:]))
		return append(append(append([]byte{}, frame[:12]...), tag...), frame[12:]...), nil
	}
	return append([]byte{}, frame...), nil
}
