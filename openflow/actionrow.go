// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// actionRow describes one kind of action: its words, its text, its encoding and its place in an action
// set. The file of the action registers the row with addAction. Rules about the lists that may contain
// the action are in check.go.
type actionRow struct {
	// words maps the names of the action in the text of ovs-ofctl to their parsers. It is empty if another
	// kind's parser returns the action: the word output also makes an ActOutputReg.
	words map[string]actionParse
	// format returns a text that one of the parsers accepts.
	format func(a *Action, names Names) string
	// encode appends the encoded action to b. endAction then adds the padding and the length. encode appends
	// nothing if the encoder's version lacks the action. It is nil if no version has the action in a list.
	encode func(e *actionEncoder, b []byte, a *Action) []byte
	// whole is true if encode itself appends complete actions, with padding and length.
	whole bool
	// nicira has the decoders of Nicira's extension actions that mean this action, by subtype.
	nicira map[uint16]niciraRow
	// rank is the action's place in an action set; rankNone: a set cannot have it.
	rank setRank
}

type actionParse func(p *actionParser, t token) (Action, error)

// niciraRow is the decoder of one of Nicira's extension actions.
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

// called returns the "format" function of an action without arguments: its text is the word alone.
func called(word string) func(*Action, Names) string {
	return func(*Action, Names) string { return word }
}

// encodeBare returns the "encode" function of one of Nicira's actions without arguments.
func encodeBare(subtype uint16) func(*actionEncoder, []byte, *Action) []byte {
	return func(_ *actionEncoder, b []byte, _ *Action) []byte { return appendZeros(appendNX(b, subtype), 6) }
}

// decodeBare returns the "decode" function of one of Nicira's actions without arguments.
func decodeBare(kind ActionKind) func(*actionDecoder, uint16, []byte) (Action, error) {
	return func(*actionDecoder, uint16, []byte) (Action, error) { return Action{Kind: kind}, nil }
}
