// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"slices"

	"weft/flowtable"
	"weft/openflow"
)

// CentralTable is the table of the flows of weft-central, the service that configures ports and networks on
// many hosts. If a frame comes from a port that weft-central has declared, and matches no flow of table 0,
// it continues in CentralTable. Only ApplyCentral changes this table. A flow of an operator may resubmit a
// frame to it.
const CentralTable = 250

// errCentralTable is the error for an operator's or a controller's change of CentralTable.
var errCentralTable = openflow.Errorf(openflow.ErrFlowEPERM, "table=%d: belongs to weft-central; expected another table", CentralTable)

// ApplyCentral applies the changes that weft-central causes. It does what Apply does, and may change
// CentralTable, too. The limit of rules does not apply, because CentralTable has only one flow for each
// declared port.
func (p *Tables) ApplyCentral(mods []openflow.FlowMod, nowNS uint64) (Changes, error) {
	return p.applyAll(bundle{p: p, nowNS: nowNS, central: true}, mods)
}

// CentralFlow returns the change that adds or deletes the flow of CentralTable for one declared port. Frames
// from this port then match the flow, and its action is normal.
func CentralFlow(command openflow.Command, port uint32) openflow.FlowMod {
	var m openflow.Match
	openflow.WholeField(openflow.FInPort).Put(&m.Value, openflow.Value64(uint64(port)), openflow.WholeField(openflow.FInPort).Ones())
	m.Mask[flowtable.WPort] = flowtable.InPortBits
	return openflow.FlowMod{Command: command, Table: CentralTable, Priority: openflow.DefaultPriority, Match: m.Pack(),
		Actions: []openflow.Action{{Kind: openflow.ActOutput, Port: openflow.PortNORMAL}}}
}

// refuses returns an error if m changes CentralTable, or adds a learn action that would change it, unless
// weft-central makes the change.
func (b *bundle) refuses(m *openflow.FlowMod) error {
	if b.central {
		return nil
	}
	if m.Table == CentralTable {
		return errCentralTable
	}
	return refusesLearning(m.Actions)
}

// refusesLearning returns an error if one of the actions, or a nested action, is a learn action that adds
// flows to CentralTable.
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

// selected returns the rules that m modifies or deletes. Rules of CentralTable are among them only if
// weft-central makes the change.
func (b *bundle) selected(m *openflow.FlowMod) []*Rule {
	list := b.p.selectRules(m)
	if b.central {
		return list
	}
	return slices.DeleteFunc(list, func(r *Rule) bool { return r.Table == CentralTable })
}
