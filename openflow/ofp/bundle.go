// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	of "weft/openflow"
)

// BundleType is the type of a bundle_control message: open, close, commit or discard.
type BundleType uint16

// Types of bundle_control (OpenFlow 1.5, 7.3.9.2). The type of a reply is the type of
// its request plus 1.
const (
	BundleOpen    BundleType = 0
	BundleClose   BundleType = 2
	BundleCommit  BundleType = 4
	BundleDiscard BundleType = 6
)

// Flags of a bundle: all of its messages or none take effect, or they take effect in their order.
const (
	BundleAtomic  = 1
	BundleOrdered = 2
)

// BundleMessage is a decoded bundle_control or bundle_add_message. In a bundle_add_message, Inner is the
// message to add to the bundle. In a bundle_control, it is empty.
type BundleMessage struct {
	ID    uint32
	Type  BundleType
	Flags uint16
	Inner []byte
}

// DecodeBundle decodes a bundle_control or a bundle_add_message. The result refers to the bytes of the
// request.
func DecodeBundle(r *Request) (m BundleMessage, err error) {
	b := reader{b: r.Body, tlvs: r.TLVs}
	m.ID, m.Type, m.Flags = b.u32(), BundleType(b.u16()), b.u16()
	if err := b.err("bundle"); err != nil || r.Kind == BundleControl {
		return m, err
	}
	if len(b.b) < HeaderLen {
		return m, coded(of.ErrBundleBadLen, "bundle_add_message: expected a message")
	}
	h := ReadHeader(b.b)
	switch {
	case int(h.Length) < HeaderLen || int(h.Length) > len(b.b):
		return m, coded(of.ErrBundleBadLen, "bundle_add_message: a message with a wrong length")
	case h.Version != r.Version:
		return m, coded(of.ErrBundleUnsup, "bundle_add_message: a message of another version")
	case h.XID != r.XID:
		return m, coded(of.ErrBundleBadXID, "bundle_add_message: a message with another xid")
	}
	m.Inner = b.b[:h.Length]
	return m, nil
}

// AppendBundleReply appends the reply to the bundle_control message m. In OpenFlow 1.3, bundles are an
// extension of the ONF.
func AppendBundleReply(b []byte, r *Request, m *BundleMessage) []byte {
	start := len(b)
	if r.Version == v13 {
		b = be.AppendUint32(be.AppendUint32(Begin(b, r.Version, TypeExperimenter, r.XID), onf), 2300)
	} else {
		b = Begin(b, r.Version, TypeBundle, r.XID)
	}
	b = be.AppendUint16(be.AppendUint32(b, m.ID), uint16(m.Type)+1)
	return End(be.AppendUint16(b, m.Flags), start)
}
