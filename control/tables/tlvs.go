// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"errors"
	"strings"

	"weft/api"
	"weft/control/usererr"
	"weft/openflow"
)

// ChangeTLVs changes the bridge's TLV map, completely or not at all.
func (ts *Tables) ChangeTLVs(change api.ChangeTLVs) error {
	mod := openflow.TLVMod{}
	switch change.Op {
	case "add":
	case "delete":
		mod.Command = openflow.TLVDelete
		if strings.TrimSpace(change.Text) == "" {
			mod.Command = openflow.TLVClear
		}
	default:
		return usererr.Errorf("%s: expected add or delete", change.Op)
	}
	var err error
	if mod.Mappings, err = openflow.ParseTLVMappings(change.Text); err != nil {
		return usererr.Mark(err)
	}
	ts.change.Lock()
	defer ts.change.Unlock()
	err = ts.bridge.ChangeTLVs(&mod)
	var input *openflow.CodedError
	if errors.As(err, &input) {
		return usererr.Mark(err)
	}
	return err
}

// TLVMap returns the bridge's TLV map.
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
