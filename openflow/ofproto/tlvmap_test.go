// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/openflow"

// testTLVs is the TLV map of newEnv and of the tests with the flows of testdata/flows.txt.
var testTLVs = func() *openflow.TLVMap {
	list, err := openflow.ParseTLVMappings("{class=0x102,type=0,len=4}->tun_metadata0,{class=0x102,type=1,len=8}->tun_metadata1," +
		"{class=0x102,type=2,len=124}->tun_metadata2,{class=0xffff,type=0x80,len=0}->tun_metadata3,{class=0,type=0x81,len=16}->tun_metadata63")
	if err != nil {
		panic(err)
	}
	var m *openflow.TLVMap
	if m, err = m.Changed(&openflow.TLVMod{Mappings: list}); err != nil {
		panic(err)
	}
	return m
}()
