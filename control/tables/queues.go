// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"weft/api"
	"weft/control/change"
)

// ListQueues describes the queues of the named port, or of all ports of the bridge.
func (ts *Tables) ListQueues(port string) ([]api.Queue, error) {
	return change.Read(ts.configuration, func(tx *change.Tx) ([]api.Queue, error) {
		view := ts.bridge.View()
		if _, known := view.PortByName(port); port != "" && !known {
			return nil, view.NoPort(port)
		}
		list := []api.Queue{}
		for _, q := range ts.bridge.Queues(tx) {
			name, _ := view.PortName(q.Port)
			if port == "" || name == port {
				list = append(list, api.Queue{Port: name, Queue: q.ID, RateKbps: q.Rate, BurstKbit: q.Depth, Packets: q.Packets,
					Bytes: q.Bytes, Dropped: q.Dropped, DurationS: float64(q.AgeNS) / 1e9})
			}
		}
		return list, nil
	})
}
