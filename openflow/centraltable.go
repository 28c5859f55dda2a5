// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"slices"

	"weft/flowtable"
)

// CentralTable is the table of weft-central's flows. A frame of a port that
// weft-central has declared continues there if it matches no flow of table 0. Only
// ApplyCentral changes the table. Operators' flows may resubmit to it.
const CentralTable = 250

// errCentralTable is the error if an operator tries to change flows of CentralTable.
var errCentralTable = codedf(ErrFlowEPERM, "table=%d: belongs to weft-central; expected another table", CentralTable)

// ApplyCentral is Apply for flows of CentralTable. The limit of rules does not apply,
// because there is only one flow for each declared port.
func (p *Pipeline) ApplyCentral(mods []FlowMod, nowNS uint64) (Changes, error) {
	return p.applyAll(bundle{p: p, nowNS: nowNS, central: true}, mods)
}

// CentralFlow returns the change that adds or deletes the flow of a declared port.
func CentralFlow(command Command, port uint32) FlowMod {
	var m Match
	WholeField(FInPort).Put(&m.Value, Value64(uint64(port)), WholeField(FInPort).Ones())
	m.Mask[flowtable.WPort] = 0xffffffff << 32
	return FlowMod{Command: command, Table: CentralTable, Priority: DefaultPriority, Match: m.Pack(),
		Actions: []Action{{Kind: ActOutput, Port: PortNORMAL}}}
}

// refuses returns an error if m is an operator's change of CentralTable.
func (b *bundle) refuses(m *FlowMod) error {
	if b.central {
		return nil
	}
	if m.Table == CentralTable {
		return errCentralTable
	}
	return refusesLearning(m.Actions)
}

// refusesLearning returns an error if actions learn flows into CentralTable.
func refusesLearning(actions []Action) error {
	for i := range actions {
		a := &actions[i]
		if a.Kind == ActLearn && a.Learn.Table == CentralTable {
			return errCentralTable
		}
		if err := refusesLearning(a.Sub); err != nil {
			return err
		}
	}
	return nil
}

// selected returns the rules that the change m selects. It selects weft-central's rules
// only for ApplyCentral.
func (b *bundle) selected(m *FlowMod) []*Rule {
	list := b.p.selectRules(m)
	if b.central {
		return list
	}
	return slices.DeleteFunc(list, func(r *Rule) bool { return r.Table == CentralTable })
}
