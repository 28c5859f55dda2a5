// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/api"
	"weft/control/observe"
	"weft/control/pipeline"
	"weft/openflow"
)

func (d *Daemon) traceRoutes(route router) {
	route("GET /v1/trace", withWords(func(r *http.Request, words pipeline.PortWords) (any, error) {
		var out api.Trace
		b, err := d.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		b.Pipeline.Tracing(words, func(t *pipeline.Tracer, view *pipeline.View, names openflow.Names) {
			tlvs := b.Pipeline.TLVs()
			out, err = observe.Trace(t, openflow.WithTLVs(view, tlvs), openflow.WithTLVs(names, tlvs), d.bridgeNames(view, words), r.URL.Query().Get("flow"), r.URL.Query().Get("ct_next"))
		})
		return out, err
	}))
}

// bridgeNames returns the names of bridges and of their ports in view.
func (d *Daemon) bridgeNames(view *pipeline.View, words pipeline.PortWords) observe.BridgeNames {
	return func(number uint8) (name string, ports openflow.Names) {
		ports = view.Of(number).Names(words)
		if b := d.bridges.Numbered(number); b != nil {
			name, ports = b.Name, openflow.WithTLVs(ports, b.Pipeline.TLVs())
		}
		return name, ports
	}
}
