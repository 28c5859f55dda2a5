// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"io"
	"net/http"
	"strings"

	"weft/api"
	"weft/control/access"
	"weft/control/pipeline"
	"weft/control/tables"
)

func (h *Handlers) flowRoutes(route router) {
	route("GET /v1/flows", withWords(func(r *http.Request, words pipeline.PortWords) (any, error) {
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return b.Tables.DumpFlows(r.URL.Query().Get("match"), words, r.URL.Query()["sort"]...)
	}))
	route("POST /v1/flows", func(r *http.Request) (any, error) {
		change, err := changeOf(r)
		if err != nil {
			return nil, err
		}
		b, err := h.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		changed, err := b.Tables.ChangeFlows(change)
		if note := h.Bridges.NoteEmpty(b); err == nil && note != "" {
			changed.Notes = append(changed.Notes, note)
		}
		return changed, err
	})
	route("DELETE /v1/flows", h.onTables(func(r *http.Request, t *tables.Tables) (any, error) {
		strict, err := truthOf(r.URL.Query(), "strict")
		if err != nil {
			return nil, err
		}
		return t.DeleteFlows(r.URL.Query().Get("match"), strict)
	}))
	route("POST /v1/flows/diff", withWords(func(r *http.Request, words pipeline.PortWords) (any, error) {
		diff := func(t *tables.Tables, c api.DiffFlows) (any, error) { return t.DiffFlows(c, words) }
		return withBodyOnTables(h, diff)(r)
	}))
	route("GET /v1/megaflows", withWords(func(_ *http.Request, words pipeline.PortWords) (any, error) {
		return h.Bridges.Megaflows().DumpMegaflows(words), nil
	}))
	route("POST /v1/packet-out", withBodyOnTables(h, func(t *tables.Tables, out api.PacketOut) (any, error) { return t.PacketOut(out.Text) }))
}

// changeOf parses the change of flows in a request's body: JSON, or a file of flows as plain
// text.
func changeOf(r *http.Request) (c api.ChangeFlows, err error) {
	if r.Header.Get("Content-Type") != "text/plain" {
		return c, body(r, &c)
	}
	var text strings.Builder
	// a client may announce more bytes than it sends, so the first allocation is limited
	text.Grow(int(min(max(r.ContentLength, 0), access.SmallBody)))
	if _, err = io.Copy(&text, r.Body); err != nil {
		return c, bodyError(err, "a file of flows")
	}
	return api.ChangeFlows{Op: r.URL.Query().Get("op"), Text: text.String(), File: true}, nil
}
