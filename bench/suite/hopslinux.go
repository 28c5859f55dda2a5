// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"

	"weft/e2e/lab"
)

// linuxHops measures the time that a datagram takes in the kernel, from the sendto call to the veth.
func linuxHops(r *run, variant string) float64 {
	w := newSite(r)
	iptables := func(args ...string) []string {
		return netnsCommand(w.netns, append([]string{"iptables-legacy"}, args...)...)
	}
	runCommands(nil, [][]string{
		w.ip("link", "add", "vx", "type", "vxlan", "id", "100", "local", w.local, "remote", w.remote, "dstport", "4789", "dev", w.dev),
		iptables("-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", "as recorded", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "RETURN"),
		iptables("-t", "nat", "-A", "POSTROUTING", "-s", "192.168.99.0/24", "-j", "MASQUERADE"),
		iptables("-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW,ESTABLISHED,RELATED", "-j", "ACCEPT"),
	})
	addressHops("vx", w.netns)
	self := lab.Must(os.Executable())
	spec := sendSpec{Core: switchCore, Count: 10 * hopsNewFlows, Port: hopsPort}
	if variant == hopsNew {
		spec.Count, spec.New = hopsNewFlows, true
	}
	timed := netnsCommand(w.netns, self, hopsVerb, taskText(spec))
	out := lab.Must(command(nil, timed[0], timed[1:]...))
	m := regexp.MustCompile(`ns a datagram: (\S+)`).FindStringSubmatch(out)
	if m == nil {
		lab.Check(fmt.Errorf("no time: %s", out))
	}
	ns := lab.Must(strconv.ParseFloat(m[1], 64))
	return ns / 1e9
}
