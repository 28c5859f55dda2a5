// SPDX-License-Identifier: Apache-2.0

package ofproto

import "weft/openflow"

// portNames has the names of ports by number. It makes the fields of testTLVs known to parsers.
type portNames map[uint32]string

func (n portNames) TLVs() *openflow.TLVMap { return testTLVs }

func (n portNames) PortByName(name string) (uint32, bool) {
	for number, s := range n {
		if s == name {
			return number, true
		}
	}
	return 0, false
}

func (n portNames) PortName(number uint32) (string, bool) {
	name, ok := n[number]
	return name, ok
}

func newNames() portNames {
	return portNames{1: "a", 2: "b", 3: "vm-1", 4: "d", 5: "vx5", 6: "vxflow", 7: "up"}
}
