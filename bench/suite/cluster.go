package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"weft/api"
	"weft/bench/replica"
)

// cluster is two hosts with an overlay between them and four guests:
//
//	┌ host 1 ─────────────────┐           ┌ host 2 ──────────────────────┐
//	│ 0 leader   3 client     ├u1──veth──u2  1 follower 1   2 follower 2 │
//	└─────────────────────────┘           └──────────────────────────────┘
//
// Guest i has the address 10.0.0.(i+1).
type cluster struct {
	*run
	peer    string
	options []string  // of every member
	hosts   [2]string // namespaces
	guests  [4]string // namespaces; none where members are guests of vhost-user ports
	weftd   [2]*process
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

// lay makes hosts, guests and what is between them.
func (c *cluster) lay() error {
	c.hosts = [2]string{"weftbench-c" + c.id + "a", "weftbench-c" + c.id + "b"}
	commands := [][]string{}
	do := func(words ...string) { commands = append(commands, words) }
	for _, h := range c.hosts {
		do("ip", "netns", "add", h)
		do("ip", "-n", h, "link", "set", "lo", "up")
	}
	do("ip", "-n", c.hosts[0], "link", "add", "u", "mtu", "1600", "type", "veth", "peer", "name", "u", "mtu", "1600", "netns", c.hosts[1])
	for i, h := range c.hosts {
		do("ip", "-n", h, "addr", "add", endpoint(i)+"/24", "dev", "u")
		do("ip", "-n", h, "link", "set", "u", "up")
	}
	if c.peer != weftPeer {
		for i := range c.guests {
			c.guests[i] = fmt.Sprintf("weftbench-c%sg%d", c.id, i)
			do("ip", "netns", "add", c.guests[i])
		}
	}
	if err := all(nil, commands); err != nil {
		return err
	}
	if c.peer == linuxPeer {
		return c.layLinux()
	}
	for i := range c.hosts {
		if err := c.startWeft(i); err != nil {
			return err
		}
	}
	return nil
}

// layLinux lays out bridge and vxlan device, with the rules under which the
// recordings were made.
func (c *cluster) layLinux() error {
	commands := [][]string{}
	do := func(words ...string) { commands = append(commands, words) }
	for i, h := range c.hosts {
		do("ip", "-n", h, "link", "add", "br0", "type", "bridge")
		do("ip", "-n", h, "link", "set", "br0", "up")
		do("ip", "-n", h, "link", "add", "vx0", "type", "vxlan", "id", "100", "local", endpoint(i), "remote", endpoint(1-i), "dstport", "4789", "dev", "u")
		do("ip", "-n", h, "link", "set", "vx0", "mtu", "1500", "master", "br0", "up")
		in := []string{"ip", "netns", "exec", h}
		do(append(in, "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=1")...)
		do(append(in, "iptables", "-t", "nat", "-A", "OUTPUT", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "RETURN")...)
		do(append(in, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "192.168.99.0/24", "-j", "MASQUERADE")...)
		do(append(in, "iptables", "-A", "FORWARD", "-m", "conntrack", "--ctstate", "NEW,ESTABLISHED", "-j", "ACCEPT")...)
	}
	for i, g := range c.guests {
		h, port := c.hosts[hostOf(i)], fmt.Sprint("p", i)
		do("ip", "-n", h, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", g, "address", clusterMAC(i))
		do("ip", "-n", h, "link", "set", port, "master", "br0", "up")
	}
	if err := all(nil, commands); err != nil {
		return err
	}
	return c.addressGuests()
}

func (c *cluster) addressGuests() error {
	commands := [][]string{}
	for i, g := range c.guests {
		commands = append(commands, []string{"ip", "-n", g, "addr", "add", clusterAddress(i).String() + "/24", "dev", "eth0"},
			[]string{"ip", "-n", g, "link", "set", "eth0", "up"})
	}
	return all(nil, commands)
}

// trackedFlows accept what the rules of layLinux accept.
const trackedFlows = `priority=10,arp,actions=normal
priority=10,ip,ct_state=-trk,actions=ct(table=1)
table=1,priority=10,ip,ct_state=+trk+new,actions=ct(commit),normal
table=1,priority=10,ip,ct_state=+trk+est,actions=normal
`

// startWeft starts the switch of a host, with its worker on the core of the same
// number, and gives it its ports.
func (c *cluster) startWeft(host int) error {
	socket := c.api(host)
	var err error
	if c.weftd[host], err = start(c.dir, fmt.Sprint("weftd", host), "ip", "netns", "exec", c.hosts[host], filepath.Join(c.bin, "weftd"),
		"--socket", socket, "--state", filepath.Join(c.dir, fmt.Sprint("state", host)), "--workers", "1", "--cores", fmt.Sprint(host)); err != nil {
		return err
	}
	if err := eventually(10*time.Second, func() error {
		_, err := c.cli(host, "show")
		return errors.Join(c.weftd[host].alive(), err)
	}); err != nil {
		return err
	}
	flows := filepath.Join(c.dir, "flows")
	if err := os.WriteFile(flows, []byte(trackedFlows), 0o644); err != nil {
		return err
	}
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
	for _, v := range verbs {
		if _, err := c.cli(host, strings.Fields(v)...); err != nil {
			return err
		}
	}
	if c.peer != weftTapPeer {
		return nil
	}
	for i, g := range c.guests {
		if hostOf(i) != host {
			continue
		}
		if err := all(nil, [][]string{{"ip", "-n", g, "addr", "add", clusterAddress(i).String() + "/24", "dev", "eth0"}, {"ip", "-n", g, "link", "set", "eth0", "up"}}); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) api(host int) string { return filepath.Join(c.dir, fmt.Sprint("api", host, ".sock")) }

func (c *cluster) cli(host int, args ...string) (string, error) {
	return command([]string{"WEFT_SOCKET=" + c.api(host)}, filepath.Join(c.bin, "weft"), args...)
}

func (c *cluster) show(host int) (*api.Show, error) {
	text, err := c.cli(host, "show", "--json")
	if err != nil {
		return nil, err
	}
	s := new(api.Show)
	return s, json.Unmarshal([]byte(text), s)
}

// daemons are Weft's own processes, by component.
func (c *cluster) daemons() map[string]int {
	list := map[string]int{}
	for i, p := range c.weftd {
		if p == nil {
			continue
		}
		if s, err := c.show(i); err == nil {
			list[fmt.Sprint("control ", i+1)], list[fmt.Sprint("engine ", i+1)] = s.PID, s.EnginePID
		}
	}
	return list
}

// frames are those that the engines have taken in.
func (c *cluster) frames() (n uint64, err error) {
	for i, p := range c.weftd {
		if p == nil {
			continue
		}
		s, err := c.show(i)
		if err != nil {
			return 0, err
		}
		for _, w := range s.Workers {
			n += w.Frames
		}
	}
	return n, nil
}

// startMember starts a replica or the client in its guest.
func (c *cluster) startMember(name string, options ...string) (*process, error) {
	guest := replica.Client
	if name != "client" {
		guest = int(name[0] - '0')
	}
	var addresses []string
	for i := range c.guests {
		addresses = append(addresses, clusterAddress(i).String())
	}
	args := []string{filepath.Join(c.bin, "weft"), "bench", "replica", name, strings.Join(addresses, ",")}
	if c.peer == weftPeer {
		args = append(args, "--vhost", c.socket(guest))
	} else {
		args = append([]string{"ip", "netns", "exec", c.guests[guest]}, args...)
	}
	args = append(append(args, c.options...), options...)
	return start(c.dir, "member-"+name, args[0], args[1:]...)
}

func (c *cluster) clear() {
	for _, p := range c.weftd {
		p.stop()
	}
	for _, ns := range append(c.hosts[:], c.guests[:]...) {
		if ns != "" {
			command(nil, "ip", "netns", "del", ns)
		}
	}
}
