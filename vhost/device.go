// SPDX-License-Identifier: Apache-2.0

// Package vhost attaches guests to the switch. A Session, in the control process,
// speaks the vhost-user protocol with a front end such as QEMU. Open, in the engine
// process, maps guest memory and returns a Device that serves the rings.
//
// A guest is an adversary. The session limits and checks every message of the protocol.
// The engine reads each word of a ring once into a local copy, checks the copy, and
// uses the copy. If a guest writes a ring that no correct driver could produce, the
// whole device of that guest breaks (it stops). The devices of other guests continue.
package vhost

import (
	"encoding/json"
	"fmt"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/port"
)

// ethernetOverhead is the number of bytes by which a frame may be longer than the
// MTU: an Ethernet header and one VLAN tag.
const ethernetOverhead = 18

// Device is a guest's network device, opened by the engine. It has one Rx for each
// transmit ring of the guest, and one Tx for each enabled receive ring of the guest.
type Device struct {
	mem    *memory
	record *record   // nil: no record
	flight *inflight // nil: no inflight buffer
	log    *dirtyLog // nil: no dirty log
	rings  []*ring
	rx     []port.Rx
	tx     []port.Tx
	fds    []int
	fault  fault
	closed bool
}

// Open opens the device that spec describes: a DeviceSpec in JSON, whose descriptors
// are in fds. It takes ownership of the descriptors, also if it fails.
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
		if d.record, err = openRecordAt(s.Record-1, d.fds, s.Vrings); err != nil {
			return err
		}
	}
	if d.flight, err = openInflight(s.Inflight, d.fds); err != nil {
		return err
	}
	if d.log, err = openLog(s.Log, d.mem, d.fds); err != nil {
		return err
	}
	// The front end may truncate guest memory after its size was checked. The fault of
	// an access must not end the engine.
	defer recoverFault(&err)()
	for _, v := range s.Vrings {
		if err := d.addVring(v, s); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) addVring(v VringSpec, s DeviceSpec) error {
	header := uint32(10) // length of the legacy virtio-net header without num_buffers (virtio 1.2 section 5.1.6.1)
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
		offloads: toGuest(s.Features)}
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
	if v.Enabled { // nobody sends to a disabled ring
		d.tx = append(d.tx, q)
	}
	return nil
}

// Rx implements port.Device. It returns a queue for each ring on which the guest transmits.
func (d *Device) Rx() []port.Rx { return d.rx }

// Tx implements port.Device. It returns a queue for each enabled ring on which the guest receives.
func (d *Device) Tx() []port.Tx { return d.tx }

// State implements port.Device and returns a DeviceState in JSON. It does not access
// guest memory.
func (d *Device) State() []byte {
	var s DeviceState
	for _, r := range d.rings {
		s.Vrings = append(s.Vrings, VringState{Index: r.index, LastAvail: r.lastAvail()})
	}
	state, err := json.Marshal(s)
	if err != nil {
		return nil // unreachable: JSON can encode any DeviceState
	}
	return state
}

// Close implements port.Device. It does not access guest memory, which may be
// truncated. Chains that were taken but not published stay available in the ring.
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
