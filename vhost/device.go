// Package vhost attaches guests: the vhost-user protocol (Session, in the
// control process) and guest memory and rings (Open, in the engine).
//
// A guest is an adversary. What it says through the protocol is bounded and
// checked by the session; what it writes into its rings is read once, checked
// and then used. A ring that no driver may make breaks the whole device, and
// nothing else.
package vhost

import (
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/port"
)

// ethernetOverhead is what a frame has beyond the MTU: the Ethernet header and
// one VLAN tag.
const ethernetOverhead = 18

// Device is a guest's network device as the engine has it open: one Rx for each
// ring the guest transmits on, one Tx for each enabled ring it receives from.
type Device struct {
	mem    *memory
	record *record   // nil: none
	flight *inflight // nil: none
	log    *dirtyLog // nil: none
	rings  []*ring
	rx     []port.Rx
	tx     []port.Tx
	fds    []int
	fault  fault
	closed bool
}

// Open opens the device that spec (a DeviceSpec in JSON) describes. It owns the
// descriptors from then on, also when it fails.
func Open(spec []byte, fds []int) (port.Device, error) {
	var s DeviceSpec
	if err := json.Unmarshal(spec, &s); err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("vhost: device specification: %w", err)
	}
	d := &Device{fds: fds}
	if err := d.open(s); err != nil {
		d.Close()
		return nil, fmt.Errorf("vhost: %w", err)
	}
	return d, nil
}

func (d *Device) open(s DeviceSpec) (err error) {
	if d.mem, err = openMemory(s.Regions, d.fds); err != nil {
		return err
	}
	if s.Record > 0 {
		if d.record, err = openRecordAt(s.Record-1, d.fds); err != nil {
			return err
		}
	}
	if d.flight, err = openInflight(s.Inflight, d.fds); err != nil {
		return err
	}
	if d.log, err = openLog(s.Log, d.mem, d.fds); err != nil {
		return err
	}
	// A file truncated since its check faults on the first touch of a ring; the
	// engine must not die of it.
	defer recoverFault(&err)()
	for _, v := range s.Vrings {
		if err := d.addVring(v, s); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) addVring(v VringSpec, s DeviceSpec) error {
	header := uint32(10) // legacy, without num_buffers (virtio 1.2 section 5.1.6.1)
	if s.Features&(FeatureMergeable|FeatureVersion1) != 0 {
		header = 12
	}
	if v.Index%2 == 1 {
		q := &rx{header: header, disabled: !v.Enabled, allowed: fromGuest(s.Features)}
		if err := q.open(v, s, d.mem, d.fds, d.record, d.flight, &d.fault); err != nil {
			return err
		}
		q.log = d.log
		q.logRing()
		if v.Enabled && len(s.Announce) == 6 && len(d.rx) == 0 {
			q.announce = announcement(s.Announce)
		}
		d.rings, d.rx = append(d.rings, &q.ring), append(d.rx, q)
		return nil
	}
	q := &tx{header: header, mergeable: s.Features&FeatureMergeable != 0, mtu: packet.MaxFrameLen,
		takes: toGuest(s.Features)}
	if s.MTU > 0 {
		q.mtu = min(q.mtu, s.MTU+ethernetOverhead)
	}
	if err := q.open(v, s, d.mem, d.fds, d.record, d.flight, &d.fault); err != nil {
		return err
	}
	q.log, q.maxFast = d.log, q.mtu
	if d.log != nil {
		q.maxFast = -1
	}
	q.logRing()
	d.rings = append(d.rings, &q.ring)
	if v.Enabled { // a disabled ring is offered to nobody
		d.tx = append(d.tx, q)
	}
	return nil
}

// Rx implements port.Device.
func (d *Device) Rx() []port.Rx { return d.rx }

// Tx implements port.Device.
func (d *Device) Tx() []port.Tx { return d.tx }

// State implements port.Device: a DeviceState. It touches no guest memory.
func (d *Device) State() []byte {
	var s DeviceState
	for _, r := range d.rings {
		s.Vrings = append(s.Vrings, VringState{Index: r.index, LastAvail: r.lastAvail()})
	}
	state, err := json.Marshal(s)
	if err != nil {
		return nil // cannot be: numbers only
	}
	return state
}

// Close implements port.Device. It touches no guest memory, which may be gone:
// what was not published stays with the guest, and State says so.
func (d *Device) Close() {
	if d.closed {
		return
	}
	d.closed = true
	if d.mem != nil {
		d.mem.close()
	}
	d.record.close()
	d.flight.close()
	d.log.close()
	closeAll(d.fds)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
