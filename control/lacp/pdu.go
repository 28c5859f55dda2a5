// SPDX-License-Identifier: Apache-2.0

package lacp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// State has the flags of a port (IEEE 802.1AX-2020 section 6.4.2.3).
type State uint8

// Flags of a State.
const (
	Activity        State = 1 << iota // sends PDUs even to a passive partner
	ShortTimeout                      // wants a PDU each second; without the flag, one each 30 seconds
	Aggregation                       // may be one of several links
	Synchronization                   // is in the right aggregation
	Collecting                        // receives frames on the link
	Distributing                      // sends frames on the link
	Defaulted                         // knows no partner
	Expired                           // has not heard the partner in time
)

// stateWords are the words of Open vSwitch's lacp/show, by bit.
var stateWords = [8]string{"activity", "timeout", "aggregation", "synchronized", "collecting", "distributing", "defaulted", "expired"}

// Words lists the flags that are set, in the words of Open vSwitch.
func (s State) Words() (list []string) {
	for bit, word := range stateWords {
		if s>>bit&1 != 0 {
			list = append(list, word)
		}
	}
	return list
}

// Info describes one end of a link in a PDU.
type Info struct {
	SystemPriority uint16
	System         [6]byte // MAC address
	Key            uint16
	PortPriority   uint16
	Port           uint16
	State          State
}

// PDU is a LACPDU, without the field for the collector's delay, which nobody uses.
type PDU struct{ Actor, Partner Info }

// PDULen is the length of a LACPDU in bytes, without the Ethernet header.
const PDULen = 110

// EtherType is the EtherType of slow protocols, of which LACP is one (IEEE 802.3 annex 57A).
const EtherType = 0x8809

// Group is the multicast MAC address to which frames of slow protocols are sent.
var Group = [6]byte{0x01, 0x80, 0xc2, 0, 0, 0x02}

const (
	subtypeLACP   = 1
	subtypeMarker = 2
	version       = 1
	typeActor     = 1
	typePartner   = 2
	typeCollector = 3
	lenInfo       = 20
	lenCollector  = 16
	// offsets in a PDU
	atActor     = 2
	atPartner   = atActor + lenInfo
	atCollector = atPartner + lenInfo
)

var (
	errMarker = errors.New("a marker")
	// errShort is the error about a frame that is shorter than a PDU.
	errShort = fmt.Errorf("expected %d bytes", PDULen)
)

// Parse reads a PDU from a frame's payload. As the standard demands, it ignores the version,
// reserved bytes and bytes after the PDU.
func Parse(b []byte) (p PDU, err error) {
	if len(b) > 0 && b[0] == subtypeMarker {
		return p, errMarker
	}
	if len(b) < PDULen {
		return p, errShort
	}
	if b[0] != subtypeLACP {
		return p, fmt.Errorf("slow protocol %d; expected %d", b[0], subtypeLACP)
	}
	for _, part := range []struct {
		offset int
		kind   byte
		info   *Info
	}{{atActor, typeActor, &p.Actor}, {atPartner, typePartner, &p.Partner}} {
		if tlv := b[part.offset:]; tlv[0] != part.kind || tlv[1] != lenInfo {
			return PDU{}, fmt.Errorf("type %d of %d bytes; expected type %d of %d", tlv[0], tlv[1], part.kind, lenInfo)
		}
		*part.info = readInfo(b[part.offset+2:])
	}
	return p, nil
}

func readInfo(b []byte) (i Info) {
	be := binary.BigEndian
	i.SystemPriority, i.Key, i.PortPriority, i.Port = be.Uint16(b), be.Uint16(b[8:]), be.Uint16(b[10:]), be.Uint16(b[12:])
	copy(i.System[:], b[2:])
	i.State = State(b[14])
	return i
}

// Append appends the encoded PDU.
func (p *PDU) Append(buf []byte) []byte {
	var b [PDULen]byte
	b[0], b[1] = subtypeLACP, version
	b[atActor], b[atActor+1] = typeActor, lenInfo
	p.Actor.write(b[atActor+2:])
	b[atPartner], b[atPartner+1] = typePartner, lenInfo
	p.Partner.write(b[atPartner+2:])
	b[atCollector], b[atCollector+1] = typeCollector, lenCollector
	return append(buf, b[:]...)
}

func (i *Info) write(b []byte) {
	be := binary.BigEndian
	be.PutUint16(b, i.SystemPriority)
	copy(b[2:], i.System[:])
	be.PutUint16(b[8:], i.Key)
	be.PutUint16(b[10:], i.PortPriority)
	be.PutUint16(b[12:], i.Port)
	b[14] = byte(i.State)
}

// compareSystems orders two ends by the priority of their systems, then by MAC address. The
// lower end is the one that decides which links are used.
func compareSystems(a, b *Info) int {
	if a.SystemPriority != b.SystemPriority {
		return int(a.SystemPriority) - int(b.SystemPriority)
	}
	return bytes.Compare(a.System[:], b.System[:])
}

// sameEnd reports whether both infos describe the same port, with the same values of the flags
// in mask.
func sameEnd(a, b *Info, mask State) bool {
	x, y := *a, *b
	x.State, y.State = x.State&mask, y.State&mask
	return x == y
}
