// SPDX-License-Identifier: Apache-2.0

package openflowtest

// TLVMappings is the TLV map that tests use, in the text of ovs-ofctl. The Geneve options in Options are
// options of these mappings, and random flows use the mapped fields.
const TLVMappings = "{class=0x102,type=0,len=4}->tun_metadata0,{class=0x102,type=1,len=8}->tun_metadata1," +
	"{class=0x102,type=2,len=124}->tun_metadata2,{class=0xffff,type=0x80,len=0}->tun_metadata3,{class=0,type=0x81,len=16}->tun_metadata63"

// Names maps the OpenFlow numbers of ports to their names. It implements openflow.Names.
type Names map[uint32]string

// PortNames returns a new map with the names of the ports 1 to 7.
func PortNames() Names {
	return Names{1: "a", 2: "b", 3: "vm-1", 4: "d", 5: "vx5", 6: "vxflow", 7: "up"}
}

// PortByName implements openflow.Names.
func (n Names) PortByName(name string) (uint32, bool) {
	for number, s := range n {
		if s == name {
			return number, true
		}
	}
	return 0, false
}

// PortName implements openflow.Names.
func (n Names) PortName(number uint32) (string, bool) {
	name, ok := n[number]
	return name, ok
}
