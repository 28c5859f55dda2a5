package pipeline

import (
	"weft/openflow"
)

// PortWords says how ports are shown in matches and actions.
type PortWords uint8

const (
	ByName PortWords = iota // where they have one
	ByNumber
)

// names is what shows ports so. Caller holds mu.
func (pl *Pipeline) names(words PortWords) openflow.Names {
	if words == ByNumber {
		return nil
	}
	return pl.view
}
