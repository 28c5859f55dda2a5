// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"strings"

	"weft/api"
	"weft/control/change"
	"weft/control/usererr"
	"weft/openflow"
)

// ChangeTLVs changes the bridge's map of Geneve options to the fields tun_metadata. After an
// error nothing has changed.
func (ts *Tables) ChangeTLVs(request api.ChangeTLVs) error {
	return ts.configuration.Update(func(tx *change.Tx) error { return ts.ChangeTLVsIn(tx, request) })
}

// ChangeTLVsIn changes the map of Geneve options like ChangeTLVs, as one of several changes in the
// transaction tx.
func (ts *Tables) ChangeTLVsIn(tx *change.Tx, request api.ChangeTLVs) error {
	mod := openflow.TLVMod{}
	switch request.Op {
	case "add":
	case "delete":
		mod.Command = openflow.TLVDelete
		if strings.TrimSpace(request.Text) == "" {
			mod.Command = openflow.TLVClear
		}
	default:
		return usererr.Errorf("%s: expected add or delete", request.Op)
	}
	var err error
	if mod.Mappings, err = openflow.ParseTLVMappings(request.Text); err != nil {
		return usererr.Mark(err)
	}
	err = ts.bridge.ChangeTLVs(tx, &mod)
	var input *openflow.CodedError
	if errors.As(err, &input) {
		return usererr.Mark(err)
	}
	return err
}

// TLVMap describes the bridge's map of Geneve options.
func (ts *Tables) TLVMap() api.TLVMap {
	m := ts.bridge.TLVs()
	shown := api.TLVMap{MaxSpace: openflow.TLVSpace, MaxFields: openflow.TLVFields, Space: m.Space(), Mappings: []api.TLVMapping{}}
	for _, t := range m.Mappings() {
		line := t.String()
		shown.Mappings = append(shown.Mappings, api.TLVMapping{Class: t.Class, Type: t.Type, Len: t.Len,
			Field: line[strings.Index(line, ">")+1:], Line: line})
	}
	return shown
}
