// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"slices"
	"strings"
)

// nxConjunction is the subtype of Nicira's action for conjunction.
const nxConjunction = 34

func init() {
	addAction(ActConjunction, actionRow{words: map[string]actionParse{"conjunction": (*actionParser).conjunction}, format: formatConjunction,
		encode: func(_ *actionEncoder, b []byte, a *Action) []byte {
			c := a.Conjunction()
			return be.AppendUint32(append(appendNX(b, nxConjunction), c.Part-1, c.Parts), c.ID)
		}, nicira: map[uint16]niciraRow{nxConjunction: {6, decodeConjunction}}})
}

func formatConjunction(a *Action, _ Names) string {
	c := a.Conjunction()
	return fmt.Sprintf("conjunction(%d,%d/%d)", c.ID, c.Part, c.Parts)
}

func decodeConjunction(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
	c := Conjunction{ID: be.Uint32(b[2:]), Part: b[0] + 1, Parts: b[1]}
	if err := c.check(); err != nil {
		return Action{}, Errorf(ErrActionBadConjunction, "conjunction: %v", err)
	}
	return c.action(), nil
}

// This file has conjunctive matches (ovs-fields(7), "Conjunctive Match Fields"). A rule with the action
// conjunction(ID, K/N) belongs to part K of the conjunction ID, which has N parts. If a frame matches a rule
// of each part, all with one priority, it is looked up again with conj_id=ID. The rules never match alone.

// Limits of the number of parts of a conjunction, as in Open vSwitch.
const (
	minParts = 2
	maxParts = 64
)

// Conjunction holds the arguments of the action "conjunction", which says to which part of which conjunction
// a rule belongs.
type Conjunction struct {
	ID    uint32
	Part  uint8 // from 1 to Parts
	Parts uint8 // from minParts to maxParts
}

func (c *Conjunction) check() error {
	switch {
	case c.Parts < minParts || c.Parts > maxParts:
		return fmt.Errorf("expected %d to %d parts", minParts, maxParts)
	case c.Part < 1 || c.Part > c.Parts:
		return fmt.Errorf("expected a part from 1 to %d", c.Parts)
	}
	return nil
}

// Conjunction returns the arguments of an ActConjunction.
func (a *Action) Conjunction() Conjunction {
	return Conjunction{ID: uint32(a.Value[1]), Part: uint8(a.Value[0] >> 8), Parts: uint8(a.Value[0])}
}

func (c Conjunction) action() Action {
	return Action{Kind: ActConjunction, Value: Value128{uint64(c.Part)<<8 | uint64(c.Parts), uint64(c.ID)}}
}

func (p *actionParser) conjunction(t token) (Action, error) {
	id, parts, ok := strings.Cut(t.value, ",")
	part, of, ok2 := strings.Cut(parts, "/")
	n, ok3 := parseUint(strings.TrimSpace(id), 1<<32-1)
	k, ok4 := parseUint(strings.TrimSpace(part), 0xff)
	m, ok5 := parseUint(strings.TrimSpace(of), 0xff)
	if !ok || !ok2 || !ok3 || !ok4 || !ok5 {
		return Action{}, wrong(t.text, "conjunction(ID,K/N), such as conjunction(1,1/2)")
	}
	c := Conjunction{ID: uint32(n), Part: uint8(k), Parts: uint8(m)}
	if err := c.check(); err != nil {
		return Action{}, wrong(t.text, "%s", strings.TrimPrefix(err.Error(), "expected "))
	}
	return c.action(), nil
}

// IsConjunctive reports whether one of the actions is "conjunction". A rule with such actions never matches
// alone.
func IsConjunctive(actions []Action) bool {
	return slices.ContainsFunc(actions, func(a Action) bool { return a.Kind == ActConjunction })
}

// checkConjunctions returns the text of the first action that a list with conjunction actions may not have,
// or "". Only note is allowed beside conjunction.
func checkConjunctions(actions []Action) string {
	if !IsConjunctive(actions) {
		return ""
	}
	for i := range actions {
		if k := actions[i].Kind; k != ActConjunction && k != ActNote {
			return formatAction(&actions[i], nil)
		}
	}
	return ""
}
