// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strings"
)

// This file has the action dec_ttl, which decrements the TTL. If the TTL of a frame has expired, the frame
// goes to the controllers with the IDs in dec_ttl(ID,...), or to those with ID 0 if the action has none.
// Action.Text has the IDs, two bytes each, in network order.

// Subtypes of Nicira's actions for dec_ttl. The second one has IDs of controllers.
const (
	nxDecTTL    = 18
	nxDecTTLIDs = 21
)

func init() {
	addAction(ActDecTTL, actionRow{words: map[string]actionParse{"dec_ttl": (*actionParser).decTTL}, format: formatDecTTL, rank: rankTTL,
		encode: (*actionEncoder).decTTL, nicira: map[uint16]niciraRow{nxDecTTL: {6, (*actionDecoder).decTTL}, nxDecTTLIDs: {6, (*actionDecoder).decTTLIDs}}})
}

func (p *actionParser) decTTL(t token) (Action, error) {
	p.check.lenient(t.text, NeedIP)
	var ids []byte
	for _, text := range strings.FieldsFunc(t.value, func(r rune) bool { return strings.ContainsRune(separators, r) }) {
		id, ok := parseUint(text, 0xffff)
		if !ok {
			return Action{}, wrong(t.text, "dec_ttl")
		}
		ids = be.AppendUint16(ids, uint16(id))
	}
	return Action{Kind: ActDecTTL, Text: string(ids)}, nil
}

func formatDecTTL(a *Action, _ Names) string {
	if a.Text == "" {
		return "dec_ttl"
	}
	var ids []string
	for id := range a.ControllerIDs {
		ids = append(ids, fmt.Sprint(id))
	}
	return "dec_ttl(" + strings.Join(ids, ",") + ")"
}

// ControllerIDs calls visit with the ID of each controller to which dec_ttl sends a frame whose TTL has
// expired. It stops if visit returns false.
func (a *Action) ControllerIDs(visit func(id uint16) bool) {
	if a.Text == "" {
		visit(0)
		return
	}
	for ids := []byte(a.Text); len(ids) >= 2 && visit(be.Uint16(ids)); ids = ids[2:] {
	}
}

func (e *actionEncoder) decTTL(b []byte, a *Action) []byte {
	switch {
	case a.Text != "":
		b = be.AppendUint16(appendNX(b, nxDecTTLIDs), uint16(len(a.Text)/2))
		return append(appendZeros(b, 4), a.Text...)
	case e.v == Version10:
		return appendNX(b, nxDecTTL)
	}
	return appendHeader(b, wireDecNWTTL)
}

func (d *actionDecoder) decTTL(uint16, []byte) (Action, error) {
	d.check.lenient("dec_ttl", NeedIP)
	return Action{Kind: ActDecTTL}, nil
}

func (d *actionDecoder) decTTLIDs(_ uint16, b []byte) (Action, error) {
	length, ids := 2*int(be.Uint16(b)), b[6:]
	switch {
	case be.Uint32(b[2:]) != 0:
		return Action{}, coded(ErrActionMustBeZero, "dec_ttl: expected zeros behind the number of ids")
	case length > len(ids):
		return Action{}, errActionLen
	}
	d.check.lenient("dec_ttl", NeedIP)
	return Action{Kind: ActDecTTL, Text: string(ids[:length])}, nil
}
