// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"weft/openflow"
	"weft/openflow/openflowtest"
)

// testTLVs is the TLV map of newEnv and of the tests with the flows of testdata/flows.txt.
var testTLVs = func() *openflow.TLVMap {
	list, err := openflow.ParseTLVMappings(openflowtest.TLVMappings)
	if err != nil {
		panic(err)
	}
	var m *openflow.TLVMap
	if m, err = m.Changed(&openflow.TLVMod{Mappings: list}); err != nil {
		panic(err)
	}
	return m
}()

// portNames returns the port names of the tests and the fields of testTLVs.
func portNames() openflow.Names { return openflow.WithTLVs(openflowtest.PortNames(), testTLVs) }
