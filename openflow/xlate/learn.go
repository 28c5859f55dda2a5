// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/packet"
)

// maxLearned is the largest number of flows that one translation learns. A translation
// that would learn more ends with drop reason DropLoop.
const maxLearned = 64

// learnFlow makes the flow of a learn action from the fields of the frame as they are now. The control
// process adds the flow to the tables after the translation.
func (x *xlate) learnFlow(spec *openflow.LearnSpec) {
	m := openflow.FlowMod{Command: openflow.ModifyStrict, Bridge: x.p.Bridge(), Table: spec.Table, Priority: spec.Priority, NewCookie: spec.Cookie, ModifyCookie: true,
		IdleTimeout: spec.IdleTimeout, HardTimeout: spec.HardTimeout, Flags: spec.Flags, Learner: x.cameIn, LearnLimit: spec.Limit}
	if spec.FinIdle != 0 || spec.FinHard != 0 {
		m.Actions = append(m.Actions, openflow.FinTimeout(spec.FinIdle, spec.FinHard))
	}
	x.wc[flowtable.WPort] |= flowtable.InPortBits // the flow counts against the quota of the input port
	var match openflow.Match
	for i := range spec.Items {
		item := &spec.Items[i]
		v := item.Value
		if item.Src.Bits != 0 {
			v = x.read(item.Src)
		}
		switch item.Kind {
		case openflow.LearnMatch:
			openflow.SetSubfield(&match, item.Dst, v)
		case openflow.LearnLoad:
			m.Actions = append(m.Actions, openflow.Action{Kind: openflow.ActLoad, Dst: item.Dst, Value: v})
		case openflow.LearnOutput:
			if v[0] == 0 && learnsOutput(v[1]) {
				m.Actions = append(m.Actions, openflow.Action{Kind: openflow.ActOutput, Port: uint32(v[1])})
			}
		}
	}
	m.Match = match.Pack()
	if spec.Limit != 0 {
		x.tables.Add(spec.Table) // MayLearn counts the flows of this table
	}
	allowed := x.p.MayLearn(&m)
	if spec.Result.Bits != 0 {
		bit := uint64(0)
		if allowed {
			bit = 1
		}
		x.set(spec.Result, openflow.Value64(bit), openflow.Ones(1))
	}
	if !allowed {
		x.note("not learned: the limit of flows is reached")
		return
	}
	if len(x.learned) == maxLearned {
		x.halt(packet.DropLoop)
		return
	}
	x.learned = append(x.learned, m)
}

// learnsOutput reports whether the learned flow may have an output to the port with this number, which a
// field of the frame contains. As in Open vSwitch, it may be an ordinary port, or IN_PORT, FLOOD, ALL or
// LOCAL.
func learnsOutput(number uint64) bool {
	switch number {
	case uint64(openflow.PortInPort), uint64(openflow.PortFlood), uint64(openflow.PortAll), uint64(openflow.PortLocal):
		return true
	}
	return number < uint64(openflow.PortMax)
}
