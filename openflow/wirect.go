// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"net/netip"
)

// This file has the encoding of ct and of nat, which stands within ct. They are Nicira's actions 35 and 36.

// Flags of ct and nat.
const (
	ctFlagCommit = 1
	ctFlagForce  = 2

	natFlagSrc        = 1
	natFlagDst        = 2
	natFlagPersistent = 4
	natFlagHash       = 8
	natFlagRandom     = 16

	natHasIPv4Min = 1
	natHasIPv4Max = 2
	natHasIPv6Min = 4
	natHasIPv6Max = 8
	natHasPortMin = 16
	natHasPortMax = 32
)

// algPorts maps the protocol in ct's argument alg to the number that encodes it: the protocol's well-known
// port.
var algPorts = map[string]uint16{"ftp": 21, "tftp": 69}

func (e *actionEncoder) ct(b []byte, c *CTSpec) []byte {
	flags := uint16(0)
	if c.Commit {
		flags |= ctFlagCommit
	}
	if c.Force {
		flags |= ctFlagForce
	}
	b = be.AppendUint16(appendNX(b, nxCT), flags)
	if c.ZoneSrc.Field != FNone {
		b = be.AppendUint16(headersOf[c.ZoneSrc.Field].nxm.append(b, false), c.ZoneSrc.bitsOf())
	} else {
		b = be.AppendUint16(be.AppendUint32(b, 0), c.Zone)
	}
	b = append(b, c.Table, 0, 0, 0)
	b = be.AppendUint16(b, algPorts[c.ALG])
	if c.NAT != nil {
		start := len(b)
		b = endAction(c.NAT.append(b), start)
	}
	return e.list(b, c.Exec)
}

func (n *NATSpec) append(b []byte) []byte {
	flags := uint16(0)
	for _, f := range []struct {
		set  bool
		flag uint16
	}{{n.Src, natFlagSrc}, {n.Dst, natFlagDst}, {n.Persistent, natFlagPersistent}, {n.Hash, natFlagHash}, {n.Random, natFlagRandom}} {
		if f.set {
			flags |= f.flag
		}
	}
	has, body := uint16(0), []byte(nil)
	put := func(flag uint16, v []byte) { has, body = has|flag, append(body, v...) }
	if n.Lo.IsValid() && !n.Lo.IsUnspecified() { // to Open vSwitch, 0.0.0.0 means that there is no address
		min, max := uint16(natHasIPv4Min), uint16(natHasIPv4Max)
		if n.Lo.Is6() {
			min, max = natHasIPv6Min, natHasIPv6Max
		}
		put(min, n.Lo.AsSlice())
		if n.Hi != n.Lo {
			put(max, n.Hi.AsSlice())
		}
	}
	if n.PortHi != 0 {
		put(natHasPortMin, be.AppendUint16(nil, n.PortLo))
		if n.PortHi != n.PortLo {
			put(natHasPortMax, be.AppendUint16(nil, n.PortHi))
		}
	}
	b = be.AppendUint16(appendZeros(appendNX(b, nxNAT), 2), flags)
	return append(be.AppendUint16(b, has), body...)
}

// decodeCT decodes ct. "body" begins behind the subtype.
func (d *actionDecoder) decodeCT(_ uint16, body []byte) (Action, error) {
	if d.depth >= maxActionDepth {
		return Action{}, coded(ErrActionTooMany, "ct: too many actions within each other")
	}
	flags, imm, alg := be.Uint16(body), be.Uint16(body[6:]), be.Uint16(body[12:])
	c := &CTSpec{Commit: flags&ctFlagCommit != 0, Force: flags&ctFlagForce != 0, Table: body[8]}
	if flags&^(ctFlagCommit|ctFlagForce) != 0 {
		return Action{}, coded(ErrActionBadArgument, "ct: unknown flags")
	}
	if be.Uint32(body[2:]) == 0 {
		c.Zone = imm
	} else {
		src, _, err := readSubfield(body[2:6], imm, nil)
		if err != nil {
			return Action{}, err
		}
		if src.Bits != 16 {
			return Action{}, coded(ErrActionBadSetLen, "ct: expected a zone of 16 bits")
		}
		if c.ZoneSrc = src; d.check.readable("ct", src) != nil {
			return Action{}, d.inconsistent("ct")
		}
	}
	for name, port := range algPorts {
		if port == alg {
			c.ALG = name
		}
	}
	if alg != 0 && c.ALG == "" {
		return Action{}, coded(ErrActionBadArgument, fmt.Sprintf("ct: alg %d: expected 21 (ftp) or 69 (tftp)", alg))
	}
	if err := d.ctActions(c, body[14:]); err != nil {
		return Action{}, err
	}
	switch {
	case c.Force && !c.Commit, c.Exec != nil && !c.Commit:
		return Action{}, coded(ErrActionBadArgument, "ct: expected commit beside force or exec")
	case d.check.lacks(NeedIP), c.ALG == "ftp" && d.check.lacks(NeedTCP),
		c.ALG == "tftp" && d.check.lacks(NeedUDP):
		return Action{}, d.inconsistent("ct")
	}
	d.check.forgetCT()
	return Action{Kind: ActCT, CT: c}, nil
}

// ctActions decodes the actions that a ct action contains. One of them may be nat. The others are the
// actions in exec(...).
func (d *actionDecoder) ctActions(c *CTSpec, b []byte) error {
	inner := *d
	inner.check.nested, inner.check.inExec, inner.check.rank = true, true, 0
	inner.depth++
	for len(b) > 0 {
		one, rest, err := cutAction(b)
		if err != nil {
			return err
		}
		if body, subtype, ok := nxBody(one); ok && subtype == nxNAT {
			if c.NAT != nil {
				return coded(ErrActionBadArgument, "ct: expected nat once")
			}
			if c.NAT, err = decodeNAT(body); err != nil {
				return err
			}
			b = rest
			continue
		}
		a, err := inner.decodeAction(one)
		if err != nil {
			return err
		}
		set := a.Kind == ActSetField || a.Kind == ActLoad || a.Kind == ActMove
		if !set || a.Dst.Field != FCTMark && a.Dst.Field != FCTLabel {
			return coded(ErrActionBadSetArgument, "ct: expected actions that set ct_mark or ct_label within exec")
		}
		c.Exec, b = append(c.Exec, a), rest
	}
	return nil
}

func decodeNAT(body []byte) (*NATSpec, error) {
	if len(body) < 6 {
		return nil, errActionLen
	}
	flags, has := be.Uint16(body[2:]), be.Uint16(body[4:])
	body = body[6:]
	n := &NATSpec{Src: flags&natFlagSrc != 0, Dst: flags&natFlagDst != 0, Persistent: flags&natFlagPersistent != 0,
		Hash: flags&natFlagHash != 0, Random: flags&natFlagRandom != 0}
	bad := coded(ErrActionBadArgument, "nat: expected src or dst, with addresses of one kind and a range in order")
	switch {
	case flags>>5 != 0 || has>>6 != 0, n.Src && n.Dst, n.Hash && n.Random,
		!n.Src && !n.Dst && (n.Persistent || n.Hash || n.Random || has != 0),
		has&(natHasIPv4Min|natHasIPv4Max) != 0 && has&(natHasIPv6Min|natHasIPv6Max) != 0:
		return nil, bad
	}
	take := func(flag uint16, size int) []byte {
		if has&flag == 0 || body == nil {
			return nil
		}
		if len(body) < size {
			body = nil
			return nil
		}
		v := body[:size]
		body = body[size:]
		return v
	}
	for _, a := range []struct {
		flag uint16
		size int
		dst  *netip.Addr
	}{{natHasIPv4Min, 4, &n.Lo}, {natHasIPv4Max, 4, &n.Hi}, {natHasIPv6Min, 16, &n.Lo}, {natHasIPv6Max, 16, &n.Hi}} {
		if v := take(a.flag, a.size); v != nil {
			*a.dst, _ = netip.AddrFromSlice(v)
		}
	}
	if v := take(natHasPortMin, 2); v != nil {
		n.PortLo = be.Uint16(v)
		n.PortHi = n.PortLo
	}
	if v := take(natHasPortMax, 2); v != nil {
		n.PortHi = be.Uint16(v)
	}
	if body == nil {
		return nil, errActionLen
	}
	if !n.Hi.IsValid() {
		n.Hi = n.Lo
	}
	if !n.Lo.IsValid() && n.Hi.IsValid() || n.Hi.Less(n.Lo) || n.PortHi < n.PortLo {
		return nil, bad
	}
	return n, nil
}
