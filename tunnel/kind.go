// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/packet"
)

// Kind is the encapsulation of a tunnel. The tunnel headers of all kinds over UDP begin with 8 bytes,
// in which the VNI is at the same place. The other kinds use GRE (gre.go).
type Kind uint8

// Kinds of tunnels.
const (
	KindVXLAN   Kind = iota // RFC 7348
	KindGBP                 // VXLAN with a group policy (draft-smith-vxlan-group-policy-05)
	KindGPE                 // VXLAN-GPE (draft-ietf-nvo3-vxlan-gpe-13) with Ethernet in it
	KindGeneve              // RFC 8926 with Ethernet in it
	KindGRE                 // RFC 2784 and RFC 2890 with Ethernet in it
	KindERSPAN1             // ERSPAN type II (draft-foschiano-erspan-03)
	KindERSPAN2             // ERSPAN type III
	kindEnd
)

// HeaderLen is the length in bytes of the first part of the tunnel header, which all kinds over UDP
// have.
const HeaderLen = 8

// kinds has two values for each Kind. The first is the tunnel header that Push writes, as a 64-bit big-endian
// word without the VNI and the Fields. The second is the family, which says how received headers are checked.
var kinds = [kindEnd]struct {
	sent   uint64
	family uint8
}{
	KindVXLAN:  {validBit, familyVXLAN},
	KindGBP:    {validBit, familyVXLAN},
	KindGPE:    {validBit | gpeP | gpeEthernet, familyGPE},
	KindGeneve: {geneveEthernet, familyGeneve},

	KindGRE:     {family: familyGRE},
	KindERSPAN1: {family: familyERSPAN},
	KindERSPAN2: {family: familyERSPAN},
}

// Families of kinds. All received headers of a family are checked in the same way, so its kinds may share a
// UDP port. The numbers of families that use UDP fit into portBits bits.
const (
	familyVXLAN = 1 + iota
	familyGPE
	familyGeneve
	familyGRE
	familyERSPAN
)

// family says how received headers of tunnels over UDP are checked. The masks and values are 64-bit
// big-endian words.
type family struct {
	// If the bits of a header under mask differ from want, the frame is dropped for the reason bad.
	mask, want uint64
	// If a header has all bits of hasNext, its bits nextMask are the type of its payload. This type must be the
	// value next, which stands for Ethernet.
	hasNext, nextMask, next uint64
	bad                     packet.DropReason
	// optionWords is the mask of those bits in the header's first byte that count the 4-byte words of
	// options after the header; 0: no options.
	optionWords uint8
}

var families = [1 << portBits]family{
	familyVXLAN: {mask: validBit, want: validBit, bad: packet.DropBadVXLAN},
	// The payload of a header without the flag P is Ethernet (section 3.1). Packets of a
	// later version and maintenance packets (O) are not forwarded.
	familyGPE: {mask: validBit | gpeVersion | gpeO, want: validBit, bad: packet.DropBadVXLAN,
		hasNext: gpeP, nextMask: gpeNext, next: gpeEthernet},
	familyGeneve: {mask: geneveVersion, bad: packet.DropBadGeneve, nextMask: geneveNext, next: geneveEthernet, optionWords: 0x3f},
}

// PlainHeader returns the first 8 bytes of the tunnel header that frames of the kind get, as a 64-bit
// big-endian word. The VNI, options and Fields are not in it.
func (k Kind) PlainHeader() uint64 { return kinds[k].sent }

// SharesPort reports whether tunnels of the kinds k and o may use the same UDP port.
func (k Kind) SharesPort(o Kind) bool { return kinds[k].family == kinds[o].family }

// Port returns the UDP port that IANA has assigned to the kind; 0: the kind has no UDP port.
func (k Kind) Port() uint16 {
	switch {
	case !k.HasPort():
		return 0
	case k == KindGPE:
		return 4790
	case k == KindGeneve:
		return 6081
	}
	return vxlanPort
}

// Bits of a Geneve header (RFC 8926 section 3.4).
const (
	geneveVersion  = 0xc0 << 56
	geneveO        = 1 << 55 // control packet
	geneveC        = 1 << 54 // some option is critical
	geneveNext     = 0xffff << 32
	geneveEthernet = packet.EtherTypeTEB << 32
)

// optionHeader is the length in bytes of the header of a Geneve option. The header's third byte is the
// type, whose highest bit marks a critical option. The lower bits of its fourth byte are the number of
// 4-byte words after the header (section 3.5).
const (
	optionHeader = 4
	critical     = 0x80
	optionLength = 0x1f
)

// checkOptions returns ok if the lengths of Geneve options add up to the length of options. hasCritical is
// true if one of the options is critical: a receiver that does not know it must drop the frame.
func checkOptions(options []byte) (hasCritical, ok bool) {
	for len(options) >= optionHeader {
		hasCritical = hasCritical || options[2]&critical != 0
		n := optionHeader + 4*int(options[3]&optionLength)
		if n > len(options) {
			return hasCritical, false
		}
		options = options[n:]
	}
	return hasCritical, len(options) == 0
}

// Fields are the tunnel fields of a frame to send, without the VNI.
type Fields struct {
	// Meta has the group policy and the flags, in the format of the key's word WTunMeta.
	Meta    uint64
	Options flowtable.TunOptions
}

// extra returns the length in bytes of the Geneve options that the tunnel sends for the fields x,
// which may be nil.
func (t *Template) extra(x *Fields) int {
	if x == nil || t.Kind != KindGeneve {
		return 0
	}
	return int(x.Options.Len)
}

// Outer returns the length in bytes of all outer headers of a frame with the fields x, which may be
// nil.
func (t *Template) Outer(x *Fields) int { return int(t.Len) + t.extra(x) }

// pushFields writes the fields x into the tunnel header at the start of h. h has room for the options
// after the header.
func (t *Template) pushFields(h []byte, x *Fields) {
	word := binary.BigEndian.Uint64(h)
	switch t.Kind {
	case KindGBP:
		id, flags := x.Meta>>flowtable.TunGBPIDShift, x.Meta>>flowtable.TunGBPFlagsShift&gbpFlags
		if id|flags != 0 { // as Linux: without a policy the header is plain
			word |= gbpG | flags<<48 | id<<32
		}
	case KindGeneve:
		if x.Meta>>flowtable.TunFlagsShift&flowtable.TunOAM != 0 {
			word |= geneveO
		}
		options := x.Options.Raw()
		if hasCritical, _ := checkOptions(options); hasCritical {
			word |= geneveC
		}
		word |= uint64(len(options)/4) << 56
		copy(h[HeaderLen:], options)
	}
	binary.BigEndian.PutUint64(h, word)
}

// metaOf returns the group policy and flags of a received header, in the format of the word WTunMeta.
func metaOf(kind Kind, header uint64) (meta uint64) {
	switch kind {
	case KindGBP:
		if header&gbpG != 0 {
			meta = header>>32&0xffff<<flowtable.TunGBPIDShift | header>>48&gbpFlags<<flowtable.TunGBPFlagsShift
		}
	case KindGeneve:
		if header&geneveO != 0 {
			meta = flowtable.TunOAM << flowtable.TunFlagsShift
		}
	}
	return meta
}
