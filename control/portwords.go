package control

import (
	"weft/openflow"
)

// portWords says how ports are shown in matches and actions.
type portWords uint8

const (
	byName portWords = iota // where they have one
	byNumber
)

// names is what shows ports so. Caller holds mu.
func (d *Pipeline) names(words portWords) openflow.Names {
	if words == byNumber {
		return nil
	}
	return d.view
}
