// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"weft/api"
	"weft/bench/replica"
	"weft/e2e/lab"
)

// cluster is two hosts with four guests. An overlay network connects the hosts:
//
//	┌ host 1 ─────────────────┐           ┌ host 2 ──────────────────────┐
//	│ 0 leader   3 client     ├u1──veth──u2  1 follower 1   2 follower 2 │
//	└─────────────────────────┘           └──────────────────────────────┘
//
// Guest i has the address 10.0.0.(i+1).
type cluster struct {
	*run
	peer    string
	config  replica.Config // of each member, without what differs between members
	hosts   [2]string      // network namespaces of the hosts
	guests  [4]string      // namespaces of the guests; unused with vhost-user
	weft    [2]*weft       // the hosts' switches; nil for Linux
	members map[string]*process
	used    map[string]replica.CPU
}

func hostOf(guest int) int { return [...]int{0, 1, 1, 0}[guest] }

func clusterAddress(guest int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(guest + 1)}) }

func clusterMAC(guest int) string {
	m := replica.HardwareAddress(clusterAddress(guest))
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

func endpoint(host int) string { return fmt.Sprint("172.31.253.", host+1) }

func (c *cluster) socket(guest int) string {
	return filepath.Join(c.dir, fmt.Sprint("m", guest, ".sock"))
}

// lay creates hosts, guests and links, which end with the run.
func (c *cluster) lay() {
	c.hosts = [2]string{"weftbench-c" + c.id + "a", "weftbench-c" + c.id + "b"}
	c.namespaces(c.hosts[:]...)
	commands := [][]string{{"ip", "-n", c.hosts[0], "link", "add", "u", "mtu", "1600", "type", "veth", "peer", "name", "u", "mtu", "1600", "netns", c.hosts[1]}}
	for i, h := range c.hosts {
		commands = append(commands, []string{"ip", "-n", h, "addr", "add", endpoint(i) + "/24", "dev", "u"}, []string{"ip", "-n", h, "link", "set", "u", "up"})
	}
	runCommands(nil, commands)
	if c.peer != weftPeer {
		for i := range c.guests {
			c.guests[i] = fmt.Sprintf("weftbench-c%sg%d", c.id, i)
		}
		c.namespaces(c.guests[:]...)
	}
	if c.peer == linuxPeer {
		c.layLinux()
		c.addressGuests()
		return
	}
	for i := range c.hosts {
		c.startWeft(i)
	}
	if c.peer == weftTapPeer {
		c.addressGuests()
	}
}

func (c *cluster) layLinux() {
	var commands [][]string
	for i, h := range c.hosts {
		commands = append(append(commands, linuxBridge(h, endpoint(i), endpoint(1-i))...), linuxRules(h)...)
	}
	for i, g := range c.guests {
		h, port := c.hosts[hostOf(i)], fmt.Sprint("p", i)
		commands = append(commands,
			[]string{"ip", "-n", h, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", g, "address", clusterMAC(i)},
			[]string{"ip", "-n", h, "link", "set", port, "master", "br0", "up"})
	}
	runCommands(nil, commands)
}

func (c *cluster) addressGuests() {
	commands := [][]string{}
	for i, g := range c.guests {
		commands = append(commands, []string{"ip", "-n", g, "addr", "add", clusterAddress(i).String() + "/24", "dev", "eth0"},
			[]string{"ip", "-n", g, "link", "set", "eth0", "up"})
	}
	runCommands(nil, commands)
}

func (c *cluster) startWeft(host int) {
	sw := new(weft)
	c.weft[host] = sw
	sw.launch(c.run, c.hosts[host], host)
	flows := filepath.Join(c.dir, "flows")
	lab.Check(os.WriteFile(flows, []byte(trackedFlows), 0o644))
	verbs := []string{"add-port up type=af_xdp dev=u", "add-port vx type=vxlan vni=100 remote=" + endpoint(1-host), "add-flows " + flows}
	for i := range c.guests {
		switch {
		case hostOf(i) != host:
		case c.peer == weftTapPeer:
			verbs = append(verbs, fmt.Sprintf("add-port g%d type=tap dev=eth0 netns=%s mac=%s mtu=1500", i, c.guests[i], clusterMAC(i)))
		default:
			verbs = append(verbs, fmt.Sprintf("add-port g%d type=vhost-user mode=server path=%s", i, c.socket(i)))
		}
	}
	sw.do(verbs...)
}

func (c *cluster) daemons() map[string]int {
	list := map[string]int{}
	for i, sw := range c.weft {
		if sw == nil {
			continue
		}
		var s *api.Show
		if lab.Attempt(func() { s = sw.show() }) == nil {
			list[fmt.Sprint("control ", i+1)], list[fmt.Sprint("engine ", i+1)] = s.PID, s.EnginePID
		}
	}
	return list
}

func (c *cluster) frames() (n uint64) {
	for _, sw := range c.weft {
		if sw == nil {
			continue
		}
		s := sw.show()
		for _, w := range s.Workers {
			n += w.Frames
		}
	}
	return n
}

// startMember starts the process of the given guest: a replica or the client.
func (c *cluster) startMember(guest int) *process {
	spec := memberSpec{Config: c.config, Held: guest == replica.Client}
	spec.Member = guest
	for i := range c.guests {
		spec.Addresses = append(spec.Addresses, clusterAddress(i))
	}
	if c.peer == weftPeer {
		spec.Port = c.socket(guest)
	}
	return startAs(c.run, fmt.Sprint("member-", guest), c.guests[guest], memberVerb, spec)
}
