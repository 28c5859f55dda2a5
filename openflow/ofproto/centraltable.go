// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"slices"

	"weft/flowtable"
	"weft/openflow"
)

// CentralTable is the table of weft-central's flows. A frame of a port that
// weft-central has declared continues there if it matches no flow of table 0. Only
// ApplyCentral changes the table. Operators' flows may resubmit to it.
const CentralTable = 250

// errCentralTable refuses an operator's change of flows in CentralTable.
var errCentralTable = openflow.Errorf(openflow.ErrFlowEPERM, "table=%d: belongs to weft-central; expected another table", CentralTable)

// ApplyCentral applies changes like Apply, but may change flows of CentralTable. The limit of
// rules does not apply, because there is only one flow for each declared port.
func (p *Tables) ApplyCentral(mods []openflow.FlowMod, nowNS uint64) (Changes, error) {
	return p.applyAll(bundle{p: p, nowNS: nowNS, central: true}, mods)
}

// CentralFlow returns the change that adds or deletes the flow of a declared port. The flow
// lets the action normal forward the port's frames.
func CentralFlow(command openflow.Command, port uint32) openflow.FlowMod {
	var m openflow.Match
	openflow.WholeField(openflow.FInPort).Put(&m.Value, openflow.Value64(uint64(port)), openflow.WholeField(openflow.FInPort).Ones())
	m.Mask[flowtable.WPort] = flowtable.InPortBits
	return openflow.FlowMod{Command: command, Table: CentralTable, Priority: openflow.DefaultPriority, Match: m.Pack(),
		Actions: []openflow.Action{{Kind: openflow.ActOutput, Port: openflow.PortNORMAL}}}
}

// refuses returns an error if m is an operator's change of CentralTable, or has a learn action
// that would change it.
func (b *bundle) refuses(m *openflow.FlowMod) error {
	if b.central {
		return nil
	}
	if m.Table == CentralTable {
		return errCentralTable
	}
	return refusesLearning(m.Actions)
}

// refusesLearning returns an error if actions learn flows into CentralTable.
func refusesLearning(actions []openflow.Action) error {
	for i := range actions {
		a := &actions[i]
		if a.Kind == openflow.ActLearn && a.Learn.Table == CentralTable {
			return errCentralTable
		}
		if err := refusesLearning(a.Sub); err != nil {
			return err
		}
	}
	return nil
}

// selected returns the rules that m modifies or deletes. Only ApplyCentral reaches
// weft-central's rules.
func (b *bundle) selected(m *openflow.FlowMod) []*Rule {
	list := b.p.selectRules(m)
	if b.central {
		return list
	}
	return slices.DeleteFunc(list, func(r *Rule) bool { return r.Table == CentralTable })
}
