// SPDX-License-Identifier: Apache-2.0

package vhost

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// row describes a request of the protocol: its name, the size of its payload, the largest number of
// descriptors, whether the handler makes the reply, and the handler. The session closes the connection if
// the handler returns an error other than a refusal.
type row struct {
	name  string
	size  int // payload in bytes, or sizeTable or sizeInflight for a variable size
	fds   int // largest number of descriptors
	reply bool
	run   func(*Session, *message) ([]byte, error)
}

// Values of row.size for payloads of variable size. The inflight description has 20
// bytes in the specification, but 24 bytes (with padding) in all front ends.
const (
	sizeTable    = -1
	sizeInflight = -2

	inflightLen       = 20
	paddedInflightLen = 24
)

func (r *row) sizeText() string {
	switch r.size {
	case sizeTable:
		return fmt.Sprintf("8 to %d", maxPayload)
	case sizeInflight:
		return fmt.Sprintf("%d or %d", inflightLen, paddedInflightLen)
	}
	return fmt.Sprint(r.size)
}

// fits reports whether a payload of n bytes has a valid size for the request.
func (r *row) fits(n uint32) bool {
	switch r.size {
	case sizeTable:
		return n >= 8 && n <= maxPayload
	case sizeInflight:
		return n == inflightLen || n == paddedInflightLen
	}
	return n == uint32(r.size)
}

// withoutFDs reports whether a message with this request and payload must come without descriptors.
func (r *row) withoutFDs(payload []byte) bool {
	return r.fds == 0 || r.size == 8 && binary.LittleEndian.Uint64(payload)&noDescriptor != 0
}

// noDescriptor is the bit in the payload of SET_VRING_KICK, SET_VRING_CALL and
// SET_VRING_ERR that means "no descriptor".
const noDescriptor = 1 << 8

// refusal is an error of a handler that keeps the connection open. The reply to the
// front end is a non-zero value.
type refusal string

func (r refusal) Error() string { return string(r) }

// table lists the requests by number (vhost-user, "Front-end message types"). The
// function init fills it, which avoids an initialization cycle.
var table [41]row

func init() {
	table = [41]row{
		1:  {"GET_FEATURES", 0, 0, true, getFeatures},
		2:  {"SET_FEATURES", 8, 0, false, setFeatures},
		3:  {"SET_OWNER", 0, 0, false, setOwner},
		4:  {"RESET_OWNER", 0, 0, false, resetOwner},
		5:  {"SET_MEM_TABLE", sizeTable, maxMessageRegions, false, setMemTable},
		6:  {"SET_LOG_BASE", 16, 1, true, setLogBase},
		7:  {"SET_LOG_FD", 0, 1, false, setLogFD},
		8:  {"SET_VRING_NUM", 8, 0, false, setVringNum},
		9:  {"SET_VRING_ADDR", 40, 0, false, setVringAddr},
		10: {"SET_VRING_BASE", 8, 0, false, setVringBase},
		11: {"GET_VRING_BASE", 8, 0, true, getVringBase},
		12: {"SET_VRING_KICK", 8, 1, false, setVringKick},
		13: {"SET_VRING_CALL", 8, 1, false, setVringCall},
		14: {"SET_VRING_ERR", 8, 1, false, setVringErr},
		15: {"GET_PROTOCOL_FEATURES", 0, 0, true, getProtocolFeatures},
		16: {"SET_PROTOCOL_FEATURES", 8, 0, false, setProtocolFeatures},
		17: {"GET_QUEUE_NUM", 0, 0, true, getQueueNum},
		18: {"SET_VRING_ENABLE", 8, 0, false, setVringEnable},
		19: {"SEND_RARP", 8, 0, false, sendRARP},
		20: {"NET_SET_MTU", 8, 0, false, netSetMTU},
		21: {"SET_BACKEND_REQ_FD", 0, 1, false, setBackendReqFD},
		31: {"GET_INFLIGHT_FD", sizeInflight, 0, true, getInflightFD},
		32: {"SET_INFLIGHT_FD", sizeInflight, 1, false, setInflightFD},
		34: {"RESET_DEVICE", 0, 0, false, resetDevice},
		36: {"GET_MAX_MEM_SLOTS", 0, 0, true, getMaxMemSlots},
		37: {"ADD_MEM_REG", 8 + regionLen, 1, false, addMemReg},
		38: {"REM_MEM_REG", 8 + regionLen, 1, false, remMemReg},
		39: {"SET_STATUS", 8, 0, false, setStatus},
		40: {"GET_STATUS", 0, 0, true, getStatus},
	}
}

func getFeatures(s *Session, _ *message) ([]byte, error) { return u64Payload(s.offered()), nil }

func setFeatures(s *Session, m *message) ([]byte, error) {
	features := m.u64()
	if extra := features &^ s.offered(); extra != 0 {
		return nil, fmt.Errorf("features %#x were not offered", extra)
	}
	if s.front.FeaturesSet && s.front.Features == features {
		return nil, nil
	}
	s.halt()
	s.change(func(f *frontEnd) {
		f.Features, f.FeaturesSet = features, true
		if features&FeatureProtocolFeatures == 0 { // without this feature all rings are enabled from the start (vhost-user, "Ring states")
			for i := range f.Vrings {
				f.Vrings[i].Enabled = true
			}
		}
	})
	return nil, nil
}

func setOwner(s *Session, _ *message) ([]byte, error) {
	s.change(func(f *frontEnd) { f.Owned = true })
	return nil, nil
}

// resetOwner disables all rings, as the specification recommends for this deprecated
// request. Without protocol features it does nothing, because the rings could not be
// enabled again.
func resetOwner(s *Session, _ *message) ([]byte, error) {
	if s.front.Features&FeatureProtocolFeatures == 0 {
		return nil, nil
	}
	s.halt()
	s.change(func(f *frontEnd) {
		for i := range f.Vrings {
			f.Vrings[i].Enabled = false
		}
	})
	return nil, nil
}

func getProtocolFeatures(s *Session, _ *message) ([]byte, error) {
	return u64Payload(s.offeredProtocol()), nil
}

func setProtocolFeatures(s *Session, m *message) ([]byte, error) {
	if extra := m.u64() &^ s.offeredProtocol(); extra != 0 {
		return nil, fmt.Errorf("protocol features %#x were not offered", extra)
	}
	s.change(func(f *frontEnd) { f.Protocol = m.u64() })
	return nil, nil
}

func getQueueNum(s *Session, _ *message) ([]byte, error) {
	return u64Payload(uint64(s.cfg.Queues)), nil
}

func getMaxMemSlots(_ *Session, _ *message) ([]byte, error) { return u64Payload(MaxRegions), nil }

// parseRegion decodes the payload "memory region description".
func parseRegion(b []byte) RegionSpec {
	return RegionSpec{
		GuestAddr:  binary.LittleEndian.Uint64(b),
		Size:       binary.LittleEndian.Uint64(b[8:]),
		UserAddr:   binary.LittleEndian.Uint64(b[16:]),
		MmapOffset: binary.LittleEndian.Uint64(b[24:]),
	}
}

func setMemTable(s *Session, m *message) ([]byte, error) {
	n := binary.LittleEndian.Uint32(m.payload)
	if n > maxMessageRegions || len(m.payload) < 8+int(n)*regionLen {
		return nil, fmt.Errorf("%d regions in %d bytes", n, len(m.payload))
	}
	if len(m.fds) != int(n) {
		return nil, fmt.Errorf("%d regions with %d descriptors", n, len(m.fds))
	}
	regions := make([]RegionSpec, n)
	for i := range regions {
		regions[i] = parseRegion(m.payload[8+i*regionLen:])
	}
	if err := checkTable(regions, m.fds); err != nil {
		return nil, err
	}
	if err := s.reserve(func(f *frontEnd) { f.Regions = regions }); err != nil {
		return nil, err
	}
	s.halt()
	s.change(func(f *frontEnd) {
		f.dropRegions()
		for i := range regions {
			regions[i].FD = m.takeFD(i)
		}
		f.Regions = regions
	})
	return nil, nil
}

// checkTable checks the regions of a memory table and their files. It stores the size of each region's
// mapping in RegionSpec.span.
func checkTable(regions []RegionSpec, fds []int) error {
	if err := checkRegions(regions); err != nil {
		return err
	}
	for i, fd := range fds {
		_, length, err := checkFile(regions[i], fd)
		if err != nil {
			return fmt.Errorf("memory region %d: %w", i, err)
		}
		regions[i].span = length
	}
	return nil
}

// addMemReg adds a memory region. Front ends with several queue pairs repeat the
// message, so an existing region with the same file stays.
func addMemReg(s *Session, m *message) ([]byte, error) {
	if len(m.fds) != 1 {
		return nil, fmt.Errorf("%d descriptors, expected 1", len(m.fds))
	}
	r := parseRegion(m.payload[8:])
	var err error
	if _, r.span, err = checkFile(r, m.fds[0]); err != nil {
		return nil, err
	}
	for _, have := range s.front.Regions {
		r.FD = have.FD
		if r == have && sameFile(have.FD, m.fds[0]) {
			return nil, nil
		}
	}
	regions := append(append([]RegionSpec{}, s.front.Regions...), r)
	if err := checkRegions(regions); err != nil {
		return nil, err
	}
	if err := s.reserve(func(f *frontEnd) { f.Regions = regions }); err != nil {
		return nil, err
	}
	s.halt()
	s.change(func(f *frontEnd) {
		regions[len(regions)-1].FD = m.takeFD(0)
		f.Regions = regions
	})
	return nil, nil
}

// sameFile reports whether two descriptors refer to the same file.
func sameFile(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

// remMemReg removes a memory region. Front ends with several queue pairs repeat the
// message, so a missing region is no error. The message's descriptor is closed
// unused.
func remMemReg(s *Session, m *message) ([]byte, error) {
	r := parseRegion(m.payload[8:])
	for i, have := range s.front.Regions {
		if have.GuestAddr == r.GuestAddr && have.UserAddr == r.UserAddr && have.Size == r.Size {
			s.halt()
			s.change(func(f *frontEnd) {
				f.drop(&f.Regions[i].FD)
				f.Regions = append(append([]RegionSpec{}, f.Regions[:i]...), f.Regions[i+1:]...)
			})
			return nil, nil
		}
	}
	return nil, nil
}

// vring returns index, or an error if the front end has no vring with this index.
func (s *Session) vring(index int) (int, error) {
	if index < 0 || index >= len(s.front.Vrings) {
		return 0, fmt.Errorf("vring %d: expected an index below %d", index, len(s.front.Vrings))
	}
	return index, nil
}

// changeVring calls the function change on the state of a ring. It stops the device first if the device
// uses the ring, or if the change may make the ring usable.
func (s *Session) changeVring(index int, change func(f *frontEnd, v *vringState)) {
	if s.front.Vrings[index].almostUsable() {
		s.halt()
	}
	s.change(func(f *frontEnd) { change(f, &f.Vrings[index]) })
}

func setVringNum(s *Session, m *message) ([]byte, error) {
	index, num := m.state()
	i, err := s.vring(index)
	if err != nil {
		return nil, err
	}
	if num == 0 || num > MaxRingSize || num&(num-1) != 0 && s.front.Features&FeatureRingPacked == 0 {
		return nil, fmt.Errorf("vring %d: %d descriptors, expected a power of two up to %d", i, num, MaxRingSize)
	}
	s.changeVring(i, func(_ *frontEnd, v *vringState) { v.Num = int(num) })
	return nil, nil
}

func setVringAddr(s *Session, m *message) ([]byte, error) {
	i, err := s.vring(int(binary.LittleEndian.Uint32(m.payload)))
	if err != nil {
		return nil, err
	}
	desc := binary.LittleEndian.Uint64(m.payload[8:])
	used := binary.LittleEndian.Uint64(m.payload[16:])
	avail := binary.LittleEndian.Uint64(m.payload[24:])
	if err := checkVring(VringSpec{Index: i, Num: 1, Desc: desc, Avail: avail, Used: used}, s.front.Features); err != nil {
		return nil, err
	}
	s.changeVring(i, func(_ *frontEnd, v *vringState) { v.Desc, v.Avail, v.Used, v.Placed = desc, avail, used, true })
	return nil, nil
}

func setVringBase(s *Session, m *message) ([]byte, error) {
	index, num := m.state()
	i, err := s.vring(index)
	if err != nil {
		return nil, err
	}
	if s.front.Features&FeatureRingPacked != 0 {
		num &= 0xffff // the upper half is the used position, which is always equal to the avail position
	}
	if num > 0xffff {
		return nil, fmt.Errorf("vring %d: base %d is no index of a split ring", i, num)
	}
	s.changeVring(i, func(_ *frontEnd, v *vringState) { v.Base = uint16(num) })
	return nil, nil
}

// getVringBase stops the device and returns the position of the ring. SET_VRING_KICK
// starts the ring again.
func getVringBase(s *Session, m *message) ([]byte, error) {
	index, _ := m.state()
	i, err := s.vring(index)
	if err != nil {
		return nil, err
	}
	s.halt()
	s.change(func(f *frontEnd) {
		v := &f.Vrings[i]
		f.drop(&v.Kick)
		v.Started = false
	})
	base := uint32(s.front.Vrings[i].Base)
	if s.front.Features&FeatureRingPacked != 0 { // the avail and used positions are equal
		base |= base << 16
	}
	b := binary.LittleEndian.AppendUint32(nil, uint32(i))
	return binary.LittleEndian.AppendUint32(b, base), nil
}

// eventFD checks a SET_VRING_KICK, SET_VRING_CALL or SET_VRING_ERR. It returns the message's vring,
// and the index of the descriptor in m.fds; -1: the message has no descriptor. The message still owns
// the descriptor.
func (s *Session) eventFD(m *message) (vring, index int, err error) {
	v := m.u64()
	vring, err = s.vring(int(v & 0xff))
	if err != nil {
		return 0, 0, err
	}
	if v&noDescriptor != 0 {
		if len(m.fds) != 0 {
			return 0, 0, fmt.Errorf("vring %d: the message brings a descriptor, bit 8 says that it has none", vring)
		}
		return vring, -1, nil
	}
	if len(m.fds) != 1 {
		return 0, 0, fmt.Errorf("vring %d: %d descriptors, expected 1", vring, len(m.fds))
	}
	// The front end can change the eventfd's status flags at any time; shm.Foreign
	// works with any flags.
	if err := shm.CheckEvent(m.fds[0]); err != nil {
		return 0, 0, fmt.Errorf("vring %d: %w", vring, err)
	}
	return vring, 0, nil
}

// takeEvent replaces *fd by descriptor number index of the message, or by -1 if index is -1.
func (f *frontEnd) takeEvent(fd *int, m *message, index int) {
	f.drop(fd)
	if index >= 0 {
		*fd = m.takeFD(index)
	}
}

func setVringKick(s *Session, m *message) ([]byte, error) {
	i, at, err := s.eventFD(m)
	if err != nil {
		return nil, err
	}
	s.changeVring(i, func(f *frontEnd, v *vringState) {
		f.takeEvent(&v.Kick, m, at)
		v.Started = true
	})
	return nil, nil
}

func setVringCall(s *Session, m *message) ([]byte, error) {
	i, at, err := s.eventFD(m)
	if err != nil {
		return nil, err
	}
	s.changeVring(i, func(f *frontEnd, v *vringState) { f.takeEvent(&v.Call, m, at) })
	return nil, nil
}

func setVringErr(s *Session, m *message) ([]byte, error) {
	i, at, err := s.eventFD(m)
	if err != nil {
		return nil, err
	}
	s.change(func(f *frontEnd) { f.takeEvent(&f.Vrings[i].Err, m, at) })
	return nil, nil
}

func setVringEnable(s *Session, m *message) ([]byte, error) {
	index, num := m.state()
	i, err := s.vring(index)
	if err != nil {
		return nil, err
	}
	if num > 1 {
		return nil, fmt.Errorf("vring %d: enable is %d, expected 0 or 1", i, num)
	}
	if s.front.Vrings[i].Enabled != (num == 1) {
		s.changeVring(i, func(_ *frontEnd, v *vringState) { v.Enabled = num == 1 })
	}
	return nil, nil
}

// sendRARP stops the device. At its next start, the device announces the guest with a
// RARP request.
func sendRARP(s *Session, m *message) ([]byte, error) {
	mac := append([]byte{}, m.payload[:6]...)
	s.halt()
	s.change(func(f *frontEnd) { f.Announce = mac })
	return nil, nil
}

// setLogBase sets the dirty log. Front ends expect an answer without payload.
func setLogBase(s *Session, m *message) ([]byte, error) {
	if len(m.fds) != 1 {
		return nil, fmt.Errorf("%d descriptors, expected 1", len(m.fds))
	}
	l := LogSpec{Size: m.u64(), Offset: binary.LittleEndian.Uint64(m.payload[8:])}
	if err := checkLog(l, m.fds[0]); err != nil {
		return nil, err
	}
	if err := s.reserve(func(f *frontEnd) { f.Log = l }); err != nil {
		return nil, err
	}
	if s.front.Features&FeatureLogAll != 0 {
		s.halt()
	}
	s.change(func(f *frontEnd) {
		f.dropLog()
		l.FD = m.takeFD(0)
		f.Log = l
	})
	return nil, nil
}

// setLogFD drops its descriptor: the switch does not signal changes of the dirty log.
func setLogFD(*Session, *message) ([]byte, error) { return nil, nil }

// netSetMTU sets the guest's MTU. It refuses an MTU that exceeds the MTU of the port.
func netSetMTU(s *Session, m *message) ([]byte, error) {
	mtu := m.u64()
	if mtu < 68 || mtu > 65535 { // RFC 791; VIRTIO_NET_F_MTU has 16 bits
		return nil, refusal(fmt.Sprintf("MTU of %d, expected 68 to 65535", mtu))
	}
	if s.cfg.MTU > 0 && mtu > uint64(s.cfg.MTU) {
		return nil, refusal(fmt.Sprintf("MTU of %d, the port's is %d", mtu, s.cfg.MTU))
	}
	s.halt()
	s.change(func(f *frontEnd) { f.MTU = int(mtu) })
	return nil, nil
}

// setBackendReqFD drops its descriptor: the switch sends no back-end requests.
func setBackendReqFD(_ *Session, m *message) ([]byte, error) {
	if len(m.fds) != 1 {
		return nil, fmt.Errorf("%d descriptors, expected 1", len(m.fds))
	}
	return nil, checkChannel(m.fds[0])
}

// resetDevice resets the rings but not the memory table.
func resetDevice(s *Session, _ *message) ([]byte, error) {
	s.halt()
	s.change(func(f *frontEnd) {
		f.resetVrings()
		f.Status = 0
	})
	return nil, nil
}

// setStatus stores the device status. A status of 0 is a reset (virtio 1.2 section
// 2.1.1) and stops the rings.
func setStatus(s *Session, m *message) ([]byte, error) {
	status := m.u64()
	if status > 0xff {
		return nil, fmt.Errorf("status %#x has more than 8 bits", status)
	}
	if status == 0 {
		s.halt()
	}
	s.change(func(f *frontEnd) {
		f.Status = uint8(status)
		for i := range f.Vrings {
			if status == 0 {
				f.drop(&f.Vrings[i].Kick)
				f.Vrings[i].Started = false
			}
		}
	})
	return nil, nil
}

func getStatus(s *Session, _ *message) ([]byte, error) {
	return u64Payload(uint64(s.front.Status)), nil
}
