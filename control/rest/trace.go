// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"

	"weft/api"
	"weft/control/observe"
	"weft/control/pipeline"
	"weft/openflow"
)

func (h *Handlers) traceRoutes(route router) {
	route("GET /v1/trace", withWords(func(r *http.Request, words pipeline.PortWords) (any, error) {
		var out api.Trace
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		b.Pipeline.Tracing(words, func(t *pipeline.Tracer, view *pipeline.View, names openflow.Names) {
			tlvs := b.Pipeline.TLVs()
			out, err = observe.Trace(t, openflow.WithTLVs(view, tlvs), openflow.WithTLVs(names, tlvs), h.Bridges.TraceNames(view, words), r.URL.Query().Get("flow"), r.URL.Query().Get("ct_next"))
		})
		return out, err
	}))
}
