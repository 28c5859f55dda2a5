// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/e2e/lab"
)

// frontend is a minimal vhost-user front end for attacks. It has guest memory and two
// rings, and sends the messages of QEMU's docs/interop/vhost-user.rst.
type frontend struct {
	t          *testing.T
	conn       *net.UnixConn
	mem        []byte
	memFD      int
	kick, call [2]int // eventfds: receive ring, transmit ring
}

// Requests of vhost-user.
const (
	reqGetFeatures  = 1
	reqSetFeatures  = 2
	reqSetOwner     = 3
	reqSetMemTable  = 5
	reqSetVringNum  = 8
	reqSetVringAddr = 9
	reqSetVringBase = 10
	reqSetVringKick = 12
	reqSetVringCall = 13
	reqGetProtocol  = 15
	reqSetProtocol  = 16
	reqSetEnable    = 18
)

const (
	featureVersion1 = 1 << 32
	featureProtocol = 1 << 30

	frontendMem  = 1 << 20
	guestBase    = 0x10000 // guest-physical address of the memory
	processBase  = 0x7f0000000000
	ringSize     = 64
	ringDistance = 0x4000 // distance in bytes from the receive ring to the transmit ring
	availOff     = 0x1000
	usedOff      = 0x2000
)

func newFrontend(t *testing.T, socket string) *frontend {
	t.Helper()
	f := &frontend{t: t}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var err error
	f.memFD, err = unix.MemfdCreate("hostile", unix.MFD_CLOEXEC)
	check(err)
	check(unix.Ftruncate(f.memFD, frontendMem))
	f.mem, err = unix.Mmap(f.memFD, 0, frontendMem, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(err)
	for i := range f.kick {
		f.kick[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC)
		check(err)
		f.call[i], err = unix.Eventfd(0, unix.EFD_CLOEXEC)
		check(err)
	}
	f.conn, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	check(err)
	t.Cleanup(func() {
		f.conn.Close()
		unix.Munmap(f.mem)
		for _, fd := range []int{f.memFD, f.kick[0], f.kick[1], f.call[0], f.call[1]} {
			unix.Close(fd)
		}
	})
	return f
}

func (f *frontend) send(request uint32, payload []byte, fds ...int) {
	f.t.Helper()
	msg := le32(request, 1, uint32(len(payload))) // flags 1: protocol version
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, _, err := f.conn.WriteMsgUnix(append(msg, payload...), oob, nil); err != nil {
		f.t.Fatalf("vhost-user request %d: %v", request, err)
	}
}

func (f *frontend) ask(request uint32) uint64 {
	f.t.Helper()
	f.send(request, nil)
	f.conn.SetReadDeadline(time.Now().Add(settle))
	var reply [20]byte
	if _, err := io.ReadFull(f.conn, reply[:]); err != nil {
		f.t.Fatalf("vhost-user answer to %d: %v", request, err)
	}
	return binary.LittleEndian.Uint64(reply[12:])
}

func (f *frontend) attach() {
	f.t.Helper()
	f.send(reqSetOwner, nil)
	if offered := f.ask(reqGetFeatures); offered&featureVersion1 == 0 || offered&featureProtocol == 0 {
		f.t.Fatalf("features %#x lack VERSION_1 or PROTOCOL_FEATURES", offered)
	}
	f.ask(reqGetProtocol)
	f.send(reqSetProtocol, le64(0))
	f.send(reqSetFeatures, le64(featureVersion1|featureProtocol))
	table := append(le32(1, 0), le64(guestBase, frontendMem, processBase, 0)...)
	f.send(reqSetMemTable, table, f.memFD)
	for i := range uint32(2) {
		at := processBase + uint64(i)*ringDistance
		f.send(reqSetVringNum, le32(i, ringSize))
		f.send(reqSetVringBase, le32(i, 0))
		f.send(reqSetVringAddr, append(le32(i, 0), le64(at, at+usedOff, at+availOff, 0)...))
		f.send(reqSetVringCall, le64(uint64(i)), f.call[i])
		f.send(reqSetVringKick, le64(uint64(i)), f.kick[i])
		f.send(reqSetEnable, le32(i, 1))
	}
}

func (f *frontend) transmit(addr uint64, length uint32, flags, next uint16) {
	ring := f.mem[ringDistance:]
	binary.LittleEndian.PutUint64(ring[0:], addr)
	binary.LittleEndian.PutUint32(ring[8:], length)
	binary.LittleEndian.PutUint16(ring[12:], flags)
	binary.LittleEndian.PutUint16(ring[14:], next)
	binary.LittleEndian.PutUint16(ring[availOff+4:], 0) // avail.ring[0]: descriptor 0
	binary.LittleEndian.PutUint16(ring[availOff+2:], 1) // avail.idx
	unix.Write(f.kick[1], le64(1))
}

func le32(values ...uint32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

func le64(values ...uint64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// The switch disconnects a guest that sends invalid descriptors or has corrupt rings,
// and logs one line. Other guests continue.
func TestHostileGuest(t *testing.T) {
	s := newSite(t)
	reach(t, s.guest, remoteIP)
	for _, attack := range []struct {
		name string
		do   func(f *frontend)
	}{
		{"outside", func(f *frontend) { f.transmit(0xdead0000, 100, 0, 0) }},
		{"beyond", func(f *frontend) { f.transmit(guestBase+frontendMem-50, 100, 0, 0) }},
		{"wrap", func(f *frontend) { f.transmit(^uint64(0)-10, 100, 0, 0) }},
		{"loop", func(f *frontend) { f.transmit(guestBase+0x10000, 100, 1, 0) }},
		{"truncate", func(f *frontend) {
			unix.Ftruncate(f.memFD, 0)
			unix.Write(f.kick[1], le64(1))
		}},
	} {
		t.Run(attack.name, func(t *testing.T) {
			socket := filepath.Join(s.lab.Dir, attack.name)
			s.weft.Weft("add-port", attack.name, "type=vhost-user", "path="+socket, "mode=server")
			engine := s.weft.EnginePID()
			f := newFrontend(t, socket)
			f.attach()
			eventually(t, func() error {
				if p := portOf(t, s.weft, attack.name); p.State != "up" {
					return fmt.Errorf("the guest is attached and the port %s: %s", p.State, p.Detail)
				}
				return nil
			})
			attack.do(f)
			eventually(t, func() error {
				if p := portOf(t, s.weft, attack.name); p.State == "up" {
					return fmt.Errorf("the guest is still attached: %s", p.Detail)
				}
				return nil
			})
			if log := s.weft.Control().Output(); !strings.Contains(log, attack.name) {
				t.Errorf("the log does not name the port:\n%s", log)
			}
			if now := s.weft.EnginePID(); now != engine {
				t.Errorf("the engine died of it: %d, now %d", engine, now)
			}
			lab.MustPing(t, s.guest, remoteIP, 3)
			s.weft.Weft("del-port", attack.name)
		})
	}
}
