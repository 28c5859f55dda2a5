// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// actionRow has what this package needs to know about one kind of action: its words in flow text, its
// parsers, its formatter, its encoder and decoders, and its place in an action set. The file of each action
// calls addAction with its row. The rules for the lists that may contain an action are in check.go.
type actionRow struct {
	// words maps each name of the action in ovs-ofctl's text to its parser. It is empty if the action shares
	// its word with another kind: the parser of "output" returns an ActOutput or an ActOutputReg.
	words map[string]actionParse
	// format returns the action's text. One of the parsers accepts this text.
	format func(a *Action, names Names) string
	// encode appends the encoded action to b. The caller then adds the padding and the length with endAction.
	// encode appends nothing if the OpenFlow version of the encoder does not have the action. It is nil for
	// actions that are instructions in all versions that have them.
	encode func(e *actionEncoder, b []byte, a *Action) []byte
	// whole is true if encode itself adds the padding and the length.
	whole bool
	// nicira has a decoder for each of Nicira's extension actions that becomes this kind of action. The key is
	// the subtype on the wire.
	nicira map[uint16]niciraRow
	// rank is the action's place in the order of execution of an action set. rankNone means that a set cannot
	// have the action.
	rank setRank
}

type actionParse func(p *actionParser, t token) (Action, error)

// niciraRow says how to decode one of Nicira's extension actions.
type niciraRow struct {
	size   int // least number of bytes of the body, which begins after the subtype
	decode func(d *actionDecoder, subtype uint16, body []byte) (Action, error)
}

var (
	actionRows  [actionKinds]actionRow
	actionWords = map[string]actionParse{}
	niciraRows  = map[uint16]niciraRow{}
)

// addAction registers the row of a kind of action. Only init functions of this package call it. It panics
// if another row has the same word or the same subtype.
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

// called returns a "format" function for an action without arguments. The text of the action is the word.
func called(word string) func(*Action, Names) string {
	return func(*Action, Names) string { return word }
}

// encodeBare returns the actionRow.encode of an action that has no arguments. Nicira's extension encodes it
// by a subtype alone.
func encodeBare(subtype uint16) func(*actionEncoder, []byte, *Action) []byte {
	return func(_ *actionEncoder, b []byte, _ *Action) []byte { return appendZeros(appendNX(b, subtype), 6) }
}

// decodeBare returns the decoder of an action that has no arguments. Nicira's extension encodes it by a
// subtype alone.
func decodeBare(kind ActionKind) func(*actionDecoder, uint16, []byte) (Action, error) {
	return func(*actionDecoder, uint16, []byte) (Action, error) { return Action{Kind: kind}, nil }
}
