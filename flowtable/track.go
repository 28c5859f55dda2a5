// SPDX-License-Identifier: Apache-2.0

package flowtable

// Bits of OpCT's U32.
const (
	CTCommit uint32 = 1 << iota
	CTForce
	// CTNAT applies the connection's NAT to the frame. With CTNATSrc or CTNATDst it
	// also sets up NAT for a new connection.
	CTNAT
	CTNATSrc
	CTNATDst
	CTRandom
	CTHash
	CTPersistent
	// CTIPv6 means that the range of NAT addresses is IPv6.
	CTIPv6
	// CTLabel means that four OpData actions follow. U64 of each has one half of ct_label or of its
	// mask: first the upper and the lower half of ct_label, then those of the mask.
	CTLabel
	// CTRange means that four OpData actions follow, after those of CTLabel. U64 of each has one half
	// of an address: first the upper and the lower half of the lowest NAT address, then those of the
	// highest. U32 of the first OpData has the lowest port in its upper 16 bits and the highest port
	// in its lower 16 bits.
	CTRange
	// CTFTP and CTTFTP mean that a new connection is one of FTP or TFTP. The worker then reads from its
	// packets which data connections will follow. These are related to it (ct_state +rel).
	CTFTP
	CTTFTP
)

// CTRecords returns the number of actions, OpCT and OpData, that encode a ct action with these flags
// (CTNAT and so on).
func CTRecords(bits uint32) int {
	n := 1
	if bits&CTLabel != 0 {
		n += 4
	}
	if bits&CTRange != 0 {
		n += 4
	}
	return n
}

// CTRequest is a decoded OpCT with its OpData actions. Addresses are in two words, the upper half first; an
// IPv4 address is in the lower 32 bits.
type CTRequest struct {
	Zone             uint16
	Bits             uint32 // set of CT* bits
	Mark, MarkMask   uint32
	Label, LabelMask [2]uint64 // upper half, lower half
	Lo, Hi           [2]uint64
	PortLo, PortHi   uint16
}

// AppendTo appends the actions that encode request r to list.
func (r *CTRequest) AppendTo(list []Action) []Action {
	list = append(list, Action{Op: OpCT, U16: r.Zone, U32: r.Bits, U64: uint64(r.Mark)<<32 | uint64(r.MarkMask)})
	if r.Bits&CTLabel != 0 {
		for _, v := range [4]uint64{r.Label[0], r.Label[1], r.LabelMask[0], r.LabelMask[1]} {
			list = append(list, Action{Op: OpData, U64: v})
		}
	}
	if r.Bits&CTRange != 0 {
		ports := uint32(r.PortLo)<<16 | uint32(r.PortHi)
		list = append(list, Action{Op: OpData, U32: ports, U64: r.Lo[0]}, Action{Op: OpData, U64: r.Lo[1]},
			Action{Op: OpData, U64: r.Hi[0]}, Action{Op: OpData, U64: r.Hi[1]})
	}
	return list
}

// ReadCT decodes the OpCT at the start of the list, with its OpData actions, into r. It returns the number of
// actions that it has read. If the list ends too early, missing operands are 0.
func ReadCT(list []Action, r *CTRequest) int {
	a := &list[0]
	*r = CTRequest{Zone: a.U16, Bits: a.U32, Mark: uint32(a.U64 >> 32), MarkMask: uint32(a.U64)}
	at := 1
	four := func(dst *[4]uint64) (first uint32) {
		for i := range dst {
			if at < len(list) {
				dst[i] = list[at].U64
				if i == 0 {
					first = list[at].U32
				}
				at++
			}
		}
		return first
	}
	var v [4]uint64
	if r.Bits&CTLabel != 0 {
		four(&v)
		r.Label, r.LabelMask = [2]uint64{v[0], v[1]}, [2]uint64{v[2], v[3]}
	}
	if r.Bits&CTRange != 0 {
		v = [4]uint64{}
		ports := four(&v)
		r.Lo, r.Hi = [2]uint64{v[0], v[1]}, [2]uint64{v[2], v[3]}
		r.PortLo, r.PortHi = uint16(ports>>16), uint16(ports)
	}
	return at
}
