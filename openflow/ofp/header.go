// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	of "weft/openflow"
)

var be = binary.BigEndian

// Version is the version number in the header of a message, such as of.Version15.
type Version = of.Version

// HeaderLen is the length of a message's header in bytes. Its fields are version (8
// bits), type (8), length (16) and xid (32).
const HeaderLen = 8

// maxMessageLen is the largest length of a message in bytes, because the length in the
// header has 16 bits.
const maxMessageLen = 0xffff

// Header is the header of an OpenFlow message.
type Header struct {
	Version Version
	Type    uint8
	Length  uint16
	XID     uint32
}

// ReadHeader decodes the header of a message. The message must have at least HeaderLen
// bytes.
func ReadHeader(b []byte) Header {
	return Header{Version: Version(b[0]), Type: b[1], Length: be.Uint16(b[2:]), XID: be.Uint32(b[4:])}
}

// ErrBadLength is the error for a message whose header states a length below HeaderLen.
var ErrBadLength = errors.New("a message states a length below 8")

// ReadMessage reads one message from r. It stores the message in buf if the capacity suffices,
// and otherwise in a new slice.
func ReadMessage(r io.Reader, buf []byte) ([]byte, error) {
	var head [HeaderLen]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(be.Uint16(head[2:]))
	if n < HeaderLen {
		return nil, ErrBadLength
	}
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	copy(buf, head[:])
	_, err := io.ReadFull(r, buf[HeaderLen:])
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return buf, err
}

// Begin appends the header of a message to b. The length in it is 0 until End writes it.
func Begin(b []byte, v Version, kind uint8, xid uint32) []byte {
	return be.AppendUint32(append(b, byte(v), kind, 0, 0), xid)
}

// End writes the length into the header of the message that begins at b[start].
func End(b []byte, start int) []byte {
	be.PutUint16(b[start+2:], uint16(len(b)-start))
	return b
}

// zeros appends n bytes of 0 to b.
func zeros(b []byte, n int) []byte { return append(b, make([]byte, n)...) }

// pad appends zeros to b, until the number of bytes after index start is a multiple of
// 8.
func pad(b []byte, start int) []byte { return zeros(b, (8-(len(b)-start)%8)%8) }

// text appends s in a field of n bytes: at most n-1 bytes of s, then zeros to the end of the field.
func text(b []byte, s string, n int) []byte {
	s = s[:min(len(s), n-1)]
	return zeros(append(b, s...), n-len(s))
}

// reader reads numbers from the body of a message. A read beyond the end returns 0. The decoder calls err
// once, after all reads, to learn whether that has happened.
type reader struct {
	b     []byte
	tlvs  *of.TLVMap // the map that matches with tun_metadata fields need
	short bool
}

func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.b) {
		r.short, r.b = true, nil
		return make([]byte, min(max(n, 0), maxMessageLen))
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8   { return r.take(1)[0] }
func (r *reader) u16() uint16 { return be.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return be.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return be.Uint64(r.take(8)) }
func (r *reader) skip(n int)  { r.take(n) }

// padded returns the next n bytes. It skips the padding that follows them up to a multiple of 8.
func (r *reader) padded(n int) []byte {
	v := r.take(n)
	r.take(min((8-n%8)%8, len(r.b)))
	return v
}

// err returns an error if a read went beyond the end of the body. The argument is the name of the message
// for the text of the error.
func (r *reader) err(body string) error {
	if r.short {
		return coded(of.ErrBadRequestLen, "%s: a message is too short", body)
	}
	return nil
}

func coded(code of.ErrorCode, format string, args ...any) error {
	return &of.CodedError{Code: code, Text: fmt.Sprintf(format, args...)}
}
