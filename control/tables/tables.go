// SPDX-License-Identifier: Apache-2.0

// Package tables answers the API's requests about flows, groups, meters, packet-outs
// and megaflows. It parses and formats the text of ovs-ofctl.
//
// The package has no state and no lock of its own. The pipeline has the tables. A request that
// changes or dumps the tables takes the configuration lock. Thus the ports that the request
// names cannot change until its change is in force. Handlers of the API call this package
// without any lock.
package tables

import (
	"errors"

	"weft/control/change"
	"weft/control/pipeline"
	"weft/control/usererr"
)

// Tables answers requests about the tables of one bridge, and about the megaflows of all
// bridges.
type Tables struct {
	configuration *change.Configuration
	bridge        *pipeline.Bridge
	pipeline      *pipeline.Pipeline
}

// New returns a Tables for bridge b.
func New(configuration *change.Configuration, b *pipeline.Bridge) *Tables {
	return &Tables{configuration: configuration, bridge: b, pipeline: b.Pipeline()}
}

// marked marks err as an error of the client's request. It does not mark the error that a change is
// in force but could not be saved.
func marked(err error) error {
	var unsaved *change.UnsavedError
	if errors.As(err, &unsaved) {
		return err
	}
	return usererr.Mark(err)
}
