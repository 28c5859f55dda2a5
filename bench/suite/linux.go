// SPDX-License-Identifier: Apache-2.0

package main

// The functions below set up the kernel as a switch. A bridge and a vxlan device connect the guests of
// two hosts.

const linuxPeer = "linux"

// linuxBridge returns the commands that create a bridge with a vxlan device.
func linuxBridge(netns, local, remote string) [][]string {
	return [][]string{
		{"ip", "-n", netns, "link", "add", "br0", "type", "bridge"},
		{"ip", "-n", netns, "link", "set", "br0", "up"},
		{"ip", "-n", netns, "link", "add", "vx0", "type", "vxlan", "id", "100", "local", local, "remote", remote, "dstport", "4789"},
		{"ip", "-n", netns, "link", "set", "vx0", "mtu", "1500", "master", "br0", "up"},
	}
}

// linuxRules returns the commands that add iptables rules, which track the connections of the bridge's
// frames.
func linuxRules(netns string) [][]string {
	return [][]string{
		netnsCommand(netns, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1"),
		netnsCommand(netns, "iptables", "-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", "as recorded", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "RETURN"),
		netnsCommand(netns, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.168.99.0/24", "-j", "MASQUERADE"),
		netnsCommand(netns, "iptables", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "NEW,ESTABLISHED", "-j", "ACCEPT"),
	}
}

// trackedFlows track and accept the same frames as linuxRules.
const trackedFlows = `priority=10,arp,actions=normal
priority=10,ip,ct_state=-trk,actions=ct(table=1)
table=1,priority=10,ip,ct_state=+trk+new,actions=ct(commit),normal
table=1,priority=10,ip,ct_state=+trk+est,actions=normal
`
