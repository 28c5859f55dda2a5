// SPDX-License-Identifier: Apache-2.0

package control

import "net/http"

func (d *Daemon) macRoutes(route router) {
	route("GET /v1/macs", func(r *http.Request) (any, error) {
		b, err := d.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return d.macs.List(b.Number), nil
	})
	route("DELETE /v1/macs", func(r *http.Request) (any, error) {
		b, err := d.bridgeOf(r)
		if err != nil {
			return nil, err
		}
		return d.macs.Flush(b.Number, r.URL.Query().Get("port"))
	})
}
