// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/api"
	"weft/control/change"
	"weft/control/limits"
	"weft/control/observe"
)

// registerLimits registers a limits.Source for every shared resource. Each source is in
// the package of its resource. It is called without locks. Two rows with the same name
// and Holder would break the metrics (TestLimitRowsAreUnique).
func (d *Daemon) registerLimits() {
	d.limits.Add(d.pipeline.LimitRows)
	d.limits.Add(d.statistics.LimitRows)
	d.limits.Add(d.tracking.LimitRows)
	d.limits.Add(d.captures.LimitRows)
	d.limits.Add(d.ports.LimitRows)
}

func (d *Daemon) limitRoutes(route router) {
	route("GET /v1/limits", func(r *http.Request) (any, error) { return d.listLimits(r.URL.Query().Get("port")) })
}

// listLimits returns the rows of all limits, or only the rows of the named port.
func (d *Daemon) listLimits(port string) ([]api.Limit, error) {
	rows := d.limits.Rows()
	if port == "" {
		return d.limitList(rows), nil
	}
	no, ok := d.pipeline.View().DatapathByName(port)
	if !ok {
		var err error
		d.configuration.View(func(tx *change.Tx) { err = d.pipeline.View().NoPort(port) })
		return nil, err
	}
	return d.limitList(limits.Select(rows, limits.Port(no))), nil
}

func (d *Daemon) limitList(rows []limits.Row) []api.Limit {
	view := d.pipeline.View()
	return limits.JSON(rows, func(number uint32) string { return observe.PortWord(view, number) })
}
