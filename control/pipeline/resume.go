// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/xlate"
)

// A flow may pause a frame and send it to a controller with its continuation: the state of the
// paused look-up. The controller gets the continuation in a property of the packet_in, and sends the
// property back to resume the frame. The property has the datapath number of the frame's input port
// (32 bits), an authentication code, and the continuation. The code detects every change of the
// property. Each control process has a key of its own, so it accepts only properties that it has
// made itself.

const (
	// sealedProperty is the type of the property. ovs-ofctl skips a property of an
	// unknown type.
	sealedProperty = 0xc000
	sealHeader     = 4 // type and length of the property
	sealPort       = 4
	sealCode       = 16
)

// sealKey is the key of the authentication codes.
type sealKey [sha256.Size]byte

func newSealKey() (key sealKey) {
	_, _ = rand.Read(key[:]) // never returns an error
	return key
}

// code returns the authentication code of a port and a continuation.
func (k *sealKey) code(port uint32, continuation []byte) []byte {
	h := hmac.New(sha256.New, k[:])
	h.Write(binary.BigEndian.AppendUint32(nil, port))
	h.Write(continuation)
	return h.Sum(nil)[:sealCode]
}

// Seal returns the property for the packet_in of a paused frame. Only the same control process
// accepts the property in Resume. port is the datapath number of the frame's input port.
func (pl *Pipeline) Seal(port uint32, continuation string) []byte {
	n := sealHeader + sealPort + sealCode + len(continuation)
	b := binary.BigEndian.AppendUint16(make([]byte, 0, (n+7)&^7), sealedProperty)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(b, uint16(n)), port)
	b = append(b, pl.seal.code(port, []byte(continuation))...)
	return append(b, continuation...)[:cap(b)]
}

// open returns the port and the continuation in a property that Seal has returned. ok is false for
// any other bytes.
func (k *sealKey) open(sealed []byte) (port uint32, continuation string, ok bool) {
	kind, body, _, err := openflow.CutProperty(sealed)
	if err != nil || kind != sealedProperty || len(body) < sealPort+sealCode {
		return 0, "", false
	}
	port, code, text := binary.BigEndian.Uint32(body), body[sealPort:sealPort+sealCode], body[sealPort+sealCode:]
	return port, string(text), hmac.Equal(code, k.code(port, text))
}

// Resume continues the look-up of a paused frame. out has the frame and its fields; its Actions are
// ignored. "sealed" is the property that the controller got with the frame. If this control process
// has not made it, Resume returns the error ErrResumeStale.
func (b *Bridge) Resume(out *openflow.PacketOut, sealed []byte) error {
	port, text, ok := b.pl.seal.open(sealed)
	if !ok {
		return &openflow.CodedError{Code: openflow.ErrResumeStale, Text: "resume: the continuation is not one of this control process"}
	}
	for w := range out.Flow[:flowtable.KeyWords] { // all header fields come from the frame's bytes
		if w != flowtable.WPort && (w < flowtable.WTunID || w >= flowtable.WTunID+flowtable.TunnelWords) && w < flowtable.WCT {
			out.Flow[w] = 0
		}
	}
	if err := fillFlow(out); err != nil {
		return &openflow.CodedError{Code: openflow.ErrBadPacket, Text: err.Error()}
	}
	if _, exists := b.pl.View().PortAt(port); !exists {
		port = 0 // the port has been removed; the worker gets no input port, as for a packet-out
	}
	_, err := b.inject(out.Frame, port, func(env xlate.Env) (xlate.Translation, error) {
		return xlate.Resume(b.tables, text, &out.Flow, port, env)
	})
	return err
}
