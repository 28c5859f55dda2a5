// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// actionRow has what this package knows of one kind of action: its words, its text, its form
// on the wire and its place in an action set. The file of the action registers the row with
// addAction. A check of lists that may have the action is in check.go.
type actionRow struct {
	// words are the names of the action in the text of ovs-ofctl, with their parsers. An
	// action without words has its text in the word of another one, as ActOutputReg has.
	words map[string]actionParse
	// format returns a text that one of the parsers accepts.
	format func(a *Action, names Names) string
	// encode appends the action without its padding and its length (endAction). It appends
	// nothing if the encoder's version does not have the action. nil: no version has it in a
	// list.
	encode func(e *actionEncoder, b []byte, a *Action) []byte
	// whole is true if encode appends whole actions, with padding and length.
	whole bool
	// nicira has Nicira's actions that stand for the action on the wire, by subtype.
	nicira map[uint16]niciraRow
	// rank is the action's place in an action set; rankNone: a set cannot have it.
	rank setRank
}

type actionParse func(p *actionParser, t token) (Action, error)

// niciraRow has what the decoder knows of one of Nicira's actions.
type niciraRow struct {
	size   int // least number of bytes of the body, which begins after the subtype
	decode func(d *actionDecoder, subtype uint16, body []byte) (Action, error)
}

var (
	actionRows  [actionKinds]actionRow
	actionWords = map[string]actionParse{}
	niciraRows  = map[uint16]niciraRow{}
)

// addAction registers the row of a kind of action. The init functions of this package call it.
func addAction(kind ActionKind, row actionRow) {
	actionRows[kind] = row
	for word, parse := range row.words {
		if actionWords[word] != nil {
			panic("two actions have the word " + word)
		}
		actionWords[word] = parse
	}
	for subtype, row := range row.nicira {
		if niciraRows[subtype].decode != nil {
			panic(fmt.Sprintf("two actions have Nicira's subtype %d", subtype))
		}
		niciraRows[subtype] = row
	}
}

// called returns the format of an action without arguments.
func called(word string) func(*Action, Names) string {
	return func(*Action, Names) string { return word }
}

// encodeBare returns the encoder of one of Nicira's actions without arguments.
func encodeBare(subtype uint16) func(*actionEncoder, []byte, *Action) []byte {
	return func(_ *actionEncoder, b []byte, _ *Action) []byte { return appendZeros(appendNX(b, subtype), 6) }
}

// decodeBare returns the decoder of one of Nicira's actions without arguments.
func decodeBare(kind ActionKind) func(*actionDecoder, uint16, []byte) (Action, error) {
	return func(*actionDecoder, uint16, []byte) (Action, error) { return Action{Kind: kind}, nil }
}
