// SPDX-License-Identifier: Apache-2.0

package vhosttest

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost"
)

// Numbers of the vhost-user requests that the front end sends.
const (
	GetFeatures         = 1
	SetFeatures         = 2
	SetOwner            = 3
	SetMemTable         = 5
	SetLogBase          = 6
	SetLogFD            = 7
	SetVringNum         = 8
	SetVringAddr        = 9
	SetVringBase        = 10
	GetVringBase        = 11
	SetVringKick        = 12
	SetVringCall        = 13
	SetVringErr         = 14
	GetProtocolFeatures = 15
	SetProtocolFeatures = 16
	GetQueueNum         = 17
	SetVringEnable      = 18
	SetBackendReqFD     = 21
	SendRARP            = 19
	NetSetMTU           = 20
	ResetDevice         = 34
	AddMemReg           = 37
	RemMemReg           = 38
	SetStatus           = 39
	GetStatus           = 40
)

// Flags in the header of a vhost-user message.
const (
	Version   = 1
	NeedReply = 1 << 3
)

const frontTimeout = 30 * time.Second

// FrontEnd acts as a virtual machine monitor such as QEMU. It speaks vhost-user with the switch for one
// Guest. Only one goroutine may use it.
type FrontEnd struct {
	Conn *net.UnixConn
	// Ack makes the front end request a reply to every message. Negotiate sets it if the switch offers
	// REPLY_ACK.
	Ack bool
	// KeepInflight makes Attach pass the guest's inflight buffer to the switch.
	KeepInflight bool
}

// Dial connects a front end to a session in server mode.
func Dial(path string) (*FrontEnd, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &FrontEnd{Conn: conn}, nil
}

// Accept waits until a session in client mode connects to the front end.
func Accept(l *net.UnixListener) (*FrontEnd, error) {
	if err := l.SetDeadline(time.Now().Add(frontTimeout)); err != nil {
		return nil, err
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return &FrontEnd{Conn: conn}, nil
}

// Close closes the connection, like a virtual machine monitor that dies.
func (f *FrontEnd) Close() { f.Conn.Close() }

// Send writes one message of the vhost-user protocol to the switch.
func (f *FrontEnd) Send(request, flags uint32, payload []byte, fds ...int) error {
	return f.SendRaw(request, flags, uint32(len(payload)), payload, fds...)
}

// SendRaw writes a message whose size field may differ from the payload's length.
func (f *FrontEnd) SendRaw(request, flags, size uint32, payload []byte, fds ...int) error {
	b := binary.LittleEndian.AppendUint32(nil, request)
	b = binary.LittleEndian.AppendUint32(b, flags)
	b = binary.LittleEndian.AppendUint32(b, size)
	b = append(b, payload...)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := f.Conn.WriteMsgUnix(b, oob, nil)
	return err
}

// Call sends a request and returns the payload of its reply.
func (f *FrontEnd) Call(request uint32, payload []byte, fds ...int) ([]byte, error) {
	if err := f.Send(request, Version|NeedReply, payload, fds...); err != nil {
		return nil, err
	}
	return f.Reply(request)
}

// Reply reads the switch's reply to the request, and returns its payload.
func (f *FrontEnd) Reply(request uint32) ([]byte, error) {
	if err := f.Conn.SetReadDeadline(time.Now().Add(frontTimeout)); err != nil {
		return nil, err
	}
	var head [12]byte
	if _, err := io.ReadFull(f.Conn, head[:]); err != nil {
		return nil, err
	}
	got, flags, n := binary.LittleEndian.Uint32(head[:]), binary.LittleEndian.Uint32(head[4:]), binary.LittleEndian.Uint32(head[8:])
	if got != request || flags != 1|4 || n > 256 {
		return nil, fmt.Errorf("reply to %d with flags %#x and %d bytes, expected one to %d", got, flags, n, request)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(f.Conn, b)
	return b, err
}

// U64 sends a request whose reply is one 64-bit number, and returns the number.
func (f *FrontEnd) U64(request uint32, payload []byte) (uint64, error) {
	b, err := f.Call(request, payload)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("reply of %d bytes, expected 8", len(b))
	}
	return binary.LittleEndian.Uint64(b), nil
}

// do sends a request that has no reply. If Ack is set, it waits for the acknowledgement.
func (f *FrontEnd) do(request uint32, payload []byte, fds ...int) error {
	if !f.Ack {
		return f.Send(request, Version, payload, fds...)
	}
	b, err := f.Call(request, payload, fds...)
	if err == nil && binary.LittleEndian.Uint64(b) != 0 {
		err = fmt.Errorf("request %d: answered %d", request, binary.LittleEndian.Uint64(b))
	}
	return err
}

// Number returns the payload of a request that carries one 64-bit number.
func Number(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// Pair returns the payload "vring state description": the index of a vring and a number whose meaning
// depends on the request.
func Pair(index int, v uint32) []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, uint32(index)), v)
}

// Region returns the payload "memory region description" of the vhost-user specification.
func Region(r vhost.RegionSpec) []byte {
	b := Number(r.GuestAddr)
	b = append(b, Number(r.Size)...)
	b = append(b, Number(r.UserAddr)...)
	return append(b, Number(r.MmapOffset)...)
}

// Negotiate accepts the guest's features and every protocol feature that the switch
// offers.
func (f *FrontEnd) Negotiate(g *Guest) error {
	offered, err := f.U64(GetFeatures, nil)
	if err != nil {
		return fmt.Errorf("features: %w", err)
	}
	if missing := g.Features &^ offered; missing != 0 {
		return fmt.Errorf("features %#x are not offered", missing)
	}
	if err := f.Send(SetOwner, Version, nil); err != nil {
		return err
	}
	if offered&vhost.FeatureProtocolFeatures != 0 {
		protocol, err := f.U64(GetProtocolFeatures, nil)
		if err != nil {
			return fmt.Errorf("protocol features: %w", err)
		}
		if err := f.Send(SetProtocolFeatures, Version, Number(protocol)); err != nil {
			return err
		}
		f.Ack = protocol&vhost.ProtocolReplyAck != 0
	}
	return f.do(SetFeatures, Number(g.Features|vhost.FeatureProtocolFeatures))
}

// SetMemory sends the guest's memory table to the switch.
func (f *FrontEnd) SetMemory(g *Guest) error {
	regions := g.Regions()
	b := Pair(len(regions), 0)
	fds := make([]int, len(regions))
	for i, r := range regions {
		b, fds[i] = append(b, Region(r)...), g.FD()
	}
	return f.do(SetMemTable, b, fds...)
}

// SetVring sets up one ring and starts it. The device starts at ring position base.
func (f *FrontEnd) SetVring(q *Queue, base uint16) error {
	v := q.Vring()
	addr := Pair(v.Index, 0)
	for _, a := range []uint64{v.Desc, v.Used, v.Avail, 0} {
		addr = append(addr, Number(a)...)
	}
	steps := []struct {
		request uint32
		payload []byte
	}{
		{SetVringNum, Pair(v.Index, uint32(v.Num))},
		{SetVringBase, Pair(v.Index, uint32(base))},
		{SetVringAddr, addr},
	}
	for _, s := range steps {
		if err := f.do(s.request, s.payload); err != nil {
			return err
		}
	}
	if err := f.event(SetVringCall, v.Index, q.call); err != nil {
		return err
	}
	return f.event(SetVringKick, v.Index, q.kick)
}

func (f *FrontEnd) event(request uint32, index, fd int) error {
	if fd < 0 {
		return f.do(request, Number(uint64(index)|1<<8))
	}
	return f.do(request, Number(uint64(index)), fd)
}

// Enable sends SET_VRING_ENABLE for a ring.
func (f *FrontEnd) Enable(q *Queue, enabled bool) error {
	v := uint32(0)
	if enabled {
		v = 1
	}
	return f.do(SetVringEnable, Pair(q.index, v))
}

// Attach negotiates the features and sets up memory and rings. The guest's device
// starts shortly afterwards.
func (f *FrontEnd) Attach(g *Guest) error { return f.attach(g, (*Queue).Start) }

// AttachAgain attaches a guest whose rings are in use already. Like QEMU, it sets each ring to the
// position after the last used element.
func (f *FrontEnd) AttachAgain(g *Guest) error { return f.attach(g, (*Queue).Position) }

func (f *FrontEnd) attach(g *Guest, position func(*Queue) uint16) error {
	if err := f.Negotiate(g); err != nil {
		return err
	}
	if err := f.SetMemory(g); err != nil {
		return fmt.Errorf("memory table: %w", err)
	}
	if f.KeepInflight {
		if err := f.Inflight(g); err != nil {
			return fmt.Errorf("inflight buffer: %w", err)
		}
	}
	return f.StartQueues(g, position)
}

// StartQueues sets up and enables all queues. positionOf returns the position at which a queue starts.
func (f *FrontEnd) StartQueues(g *Guest, positionOf func(*Queue) uint16) error {
	for i := range g.Rx {
		for _, q := range []*Queue{g.Rx[i], g.Tx[i]} {
			if err := f.SetVring(q, positionOf(q)); err != nil {
				return fmt.Errorf("vring %d: %w", q.index, err)
			}
		}
	}
	for i := range g.Rx {
		for _, q := range []*Queue{g.Rx[i], g.Tx[i]} {
			if err := f.Enable(q, true); err != nil {
				return fmt.Errorf("enable vring %d: %w", q.index, err)
			}
		}
	}
	return nil
}

// Stop stops a ring with GET_VRING_BASE and returns the ring's position.
func (f *FrontEnd) Stop(q *Queue) (uint16, error) {
	b, err := f.Call(GetVringBase, Pair(q.index, 0))
	if err != nil {
		return 0, err
	}
	if len(b) != 8 || binary.LittleEndian.Uint32(b) != uint32(q.index) {
		return 0, fmt.Errorf("position of vring %d: %x", q.index, b)
	}
	return uint16(binary.LittleEndian.Uint32(b[4:])), nil
}

// ListenFront listens at path for connections of sessions in client mode.
func ListenFront(path string) (*net.UnixListener, error) {
	_ = os.Remove(path)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}
