package control

import (
	"weft/control/observe"
	"weft/control/pipeline"
	"weft/control/ports"
)

// presentEngine is observe.Engine over the pipeline.
type presentEngine struct{ pipeline *pipeline.Pipeline }

func (e presentEngine) Hold() (observe.Workers, func()) {
	w, release := e.pipeline.Hold()
	if w == nil {
		return nil, release
	}
	return w, release
}

// Client is Engine's: the present engine, nil while there is none.
func (d *Daemon) Client() ports.Client {
	if c := d.engine(); c != nil {
		return c
	}
	return nil
}
