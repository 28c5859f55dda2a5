// SPDX-License-Identifier: Apache-2.0

package control

import (
	"weft/control/observe"
	"weft/control/pipeline"
)

// presentEngine implements observe.Engine with the workers of the pipeline's present engine.
type presentEngine struct{ pipeline *pipeline.Pipeline }

func (e presentEngine) Hold() (observe.Workers, func()) {
	w, release := e.pipeline.Hold()
	if w == nil {
		return nil, release
	}
	return w, release
}
