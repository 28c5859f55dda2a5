// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"slices"
	"strings"
)

// settingWords are the words for those settings of a flow that have a value, such as its priority. The
// settings without a value are in flagWords.
var settingWords = []string{"table=", "priority=", "cookie=", "idle_timeout=", "hard_timeout=", "importance="}

// portActions are words that are an action without arguments. All but drop are names of reserved ports.
var portActions = []string{"normal", "drop", "all", "flood", "local", "in_port"}

// Complete returns the possible completions of "begin", the beginning of a flow's text, for a shell. Each
// adds a setting, a field, a protocol, an action or the name of a port. They are sorted. If "actions" is
// false, "begin" is the beginning of a match.
func Complete(begin string, actions bool, ports []string) []string {
	if i := strings.LastIndex(begin, "actions="); i >= 0 {
		head, rest := begin[:i+len("actions=")], begin[i+len("actions="):]
		return completeAction(head, rest, ports)
	}
	head, word := cutLast(begin, ",")
	if port, ok := strings.CutPrefix(word, "in_port="); ok {
		return continued(head+"in_port=", port, ports)
	}
	words := slices.Clone(settingWords)
	if actions {
		words = append(words, "actions=")
		for _, w := range flagWords {
			words = append(words, w.word)
		}
	}
	for _, s := range shorthands {
		words = append(words, s.name)
	}
	for name := range fieldNames {
		words = append(words, name+"=")
	}
	return continued(head, word, words)
}

func completeAction(head, rest string, ports []string) []string {
	before, action := cutLast(rest, ",")
	if to := strings.LastIndex(action, "->"); to >= 0 {
		names := make([]string, 0, len(fieldNames))
		for name := range fieldNames {
			names = append(names, name)
		}
		return continued(head+before+action[:to+2], action[to+2:], names)
	}
	if strings.Count(rest, "(") > strings.Count(rest, ")") {
		return nil // there are no suggestions within an action's parentheses
	}
	if port, ok := strings.CutPrefix(action, "output:"); ok {
		return continued(head+before+"output:", port, ports)
	}
	words := slices.Concat(portActions, ports)
	for name := range actionWords {
		words = append(words, name)
	}
	return continued(head+before, action, words)
}

// cutLast splits text behind the last separator. If text has no separator, head is empty.
func cutLast(text, separator string) (head, rest string) {
	i := strings.LastIndex(text, separator) + len(separator)
	if i < len(separator) {
		i = 0
	}
	return text[:i], text[i:]
}

// continued returns the words that begin with typedText, in sorted order. It puts "head", the text before
// the word, in front of each.
func continued(head, typedText string, words []string) (texts []string) {
	for _, word := range words {
		if strings.HasPrefix(word, typedText) {
			texts = append(texts, head+word)
		}
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}
