// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/openflow"
)

// PortWords selects how ports are shown in matches and actions.
type PortWords uint8

const (
	ByName PortWords = iota // by name if they have one
	ByNumber
)

// names returns the port names, or nil for numbers. The caller holds Pipeline.mu.
func (pl *Pipeline) names(words PortWords) openflow.Names {
	if words == ByNumber {
		return nil
	}
	return pl.view
}
