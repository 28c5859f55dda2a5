// SPDX-License-Identifier: Apache-2.0

package statistics

import (
	"testing"

	"weft/control/pipeline/pipelinetest"
	"weft/packet"
)

// The statistics of a port are a sum over engines. ResetPort sets them to 0. Later
// counts of the present engine are added.
func TestPortStatistics(t *testing.T) {
	f := pipelinetest.New(t)
	s := New(f.P, []int{0})
	present := &f.P.Workers().Shared()[0].Ports[1]
	present.RxPackets, present.RxDrops[packet.DropFlow] = 5, 2
	present.TxDrops, present.TxReasons[packet.DropNoRoute] = 4, 4
	f.P.Region().Ports[1].RxPackets = 10
	f.P.Workers().Shared()[0].SpentNS[1] = 700
	if p := s.Port(1); p.RxPackets != 15 || p.WorkerNS != 700 || p.RxDrops["flow-drop"] != 2 || p.TxDrops != 4 || p.TxDropReasons["no-route"] != 4 {
		t.Errorf("%+v", p)
	}
	s.ResetPort(1)
	if p := s.Port(1); p.RxPackets != 0 || len(p.RxDrops) != 0 {
		t.Errorf("after the reset: %+v", p)
	}
	present.RxPackets += 3
	if p := s.Port(1); p.RxPackets != 3 {
		t.Errorf("later: %+v", p)
	}
	if list := s.Workers(); len(list) != 1 || list[0].Core != 0 {
		t.Errorf("workers %+v", list)
	}
}
