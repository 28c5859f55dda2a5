// SPDX-License-Identifier: Apache-2.0

package openflowtest

// TLVMappings is the TLV map of the tests, as ovs-ofctl writes it. Options has options for its
// fields, and the random flows use these fields.
const TLVMappings = "{class=0x102,type=0,len=4}->tun_metadata0,{class=0x102,type=1,len=8}->tun_metadata1," +
	"{class=0x102,type=2,len=124}->tun_metadata2,{class=0xffff,type=0x80,len=0}->tun_metadata3,{class=0,type=0x81,len=16}->tun_metadata63"

// Names has the names of ports by number. It implements openflow.Names.
type Names map[uint32]string

// PortNames returns the names of a bridge's ports. The caller may change them.
func PortNames() Names {
	return Names{1: "a", 2: "b", 3: "vm-1", 4: "d", 5: "vx5", 6: "vxflow", 7: "up"}
}

// PortByName returns the number of a port.
func (n Names) PortByName(name string) (uint32, bool) {
	for number, s := range n {
		if s == name {
			return number, true
		}
	}
	return 0, false
}

// PortName returns the name of a port.
func (n Names) PortName(number uint32) (string, bool) {
	name, ok := n[number]
	return name, ok
}
