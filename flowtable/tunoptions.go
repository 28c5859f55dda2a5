// SPDX-License-Identifier: Apache-2.0

package flowtable

import "encoding/binary"

// MaxTunOptions is the maximum length in bytes of a frame's Geneve options: the field "Opt
// Len" of the header has 6 bits, in units of 4 bytes (RFC 8926 section 3.4).
const MaxTunOptions = 63 * 4

// TunOptions are the raw Geneve options of one frame, as on the wire. The length is a
// multiple of 4.
type TunOptions struct {
	Len   uint32
	Bytes [MaxTunOptions]byte
}

// Raw returns the options without copying.
func (o *TunOptions) Raw() []byte { return o.Bytes[:min(o.Len, MaxTunOptions)] }

// Set copies the options into o. It leaves out bytes beyond MaxTunOptions.
func (o *TunOptions) Set(options []byte) { o.Len = uint32(copy(o.Bytes[:], options)) }

// Number of the lowest bit of each field in the key's word WTunMeta.
const (
	TunGBPIDShift    = 48
	TunGBPFlagsShift = 40
	TunFlagsShift    = 16
)

// TunOAM is the bit of tun_flags that is set in a tunnel's control packets (RFC 8926 section 3.4, "O").
const TunOAM = 1

// TunCritical is the bit of WTunMeta that is set for a frame with a critical Geneve option (RFC 8926
// section 3.5).
const TunCritical = 1

// OptionsKey is the random key for the hashes of Geneve options. A sender that does not know
// it cannot choose options with equal hashes. Megaflows match these hashes, so the key must
// not change while any megaflow exists.
type OptionsKey [2]uint64

// Hash returns the hash of raw Geneve options. It is 0 only if there are no options.
func (k *OptionsKey) Hash(options []byte) uint64 {
	if len(options) == 0 {
		return 0
	}
	a, b := k[0]^0xa0761d6478bd642f, k[1]^0xe7037ed1a0b428db // random constants, so that a key of small numbers is no weaker
	acc := a ^ uint64(len(options))
	for ; len(options) >= 16; options = options[16:] {
		acc = fold(binary.LittleEndian.Uint64(options)^b, binary.LittleEndian.Uint64(options[8:])^acc)
	}
	var rest [16]byte
	copy(rest[:], options)
	acc = fold(binary.LittleEndian.Uint64(rest[:])^b, binary.LittleEndian.Uint64(rest[8:])^acc)
	return max(fold(acc^a, b), 1)
}

// AppendTunOptions appends an OpTunOptions, with its OpData actions, to list. It sets the raw Geneve options
// for the OpTunnel actions after it.
func AppendTunOptions(list []Action, options []byte) []Action {
	list = append(list, Action{Op: OpTunOptions, U16: uint16(len(options))})
	for ; len(options) > 0; options = options[min(8, len(options)):] {
		var word [8]byte
		copy(word[:], options)
		list = append(list, Action{Op: OpData, U64: binary.BigEndian.Uint64(word[:])})
	}
	return list
}

// ReadTunOptions decodes the OpTunOptions at the start of the list, with its OpData actions, into o. It
// returns the number of actions that it has read. If the length is invalid or the list is too short, o
// has no options and the result is 1.
func ReadTunOptions(list []Action, o *TunOptions) int {
	o.Len = 0
	n := int(list[0].U16)
	if n > MaxTunOptions || n%4 != 0 || len(list) < 1+(n+7)/8 {
		return 1
	}
	var word [8]byte
	for at := 0; at < n; at += 8 {
		binary.BigEndian.PutUint64(word[:], list[1+at/8].U64)
		copy(o.Bytes[at:], word[:])
	}
	o.Len = uint32(n)
	return 1 + (n+7)/8
}
