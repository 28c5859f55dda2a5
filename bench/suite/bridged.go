// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"time"

	"weft/e2e/lab"
)

// The functions below measure the kernel's connection tracking. A kernel bridge takes the place of the
// switch, and two veth pairs take the place of the guests' rings. The sender runs on guestCore,
// everything else on switchCore.

// bridgedMost is a number of connections that is within the kernel's default limit.
const bridgedMost = 10_000

// measureBridged returns the frames per second that a kernel bridge forwards. "n" connections are
// established meanwhile.
func measureBridged(r *run, mode trackHow, n int) float64 {
	a, bridge, b := "weftbench-ka"+r.id, "weftbench-kb"+r.id, "weftbench-kc"+r.id
	r.namespaces(a, bridge, b)
	commands := [][]string{{"ip", "-n", bridge, "link", "add", "br0", "up", "type", "bridge"}}
	for i, guest := range []string{a, b} {
		p := fmt.Sprint("p", i)
		commands = append(commands,
			[]string{"ip", "-n", bridge, "link", "add", p, "up", "master", "br0", "type", "veth", "peer", "name", "v", "netns", guest},
			[]string{"ip", "-n", guest, "link", "set", "v", "up"})
	}
	commands = append(commands, netnsCommand(bridge, "sh", "-c", fmt.Sprintf("echo %x > /sys/class/net/p0/queues/rx-0/rps_cpus", 1<<switchCore)))
	if mode == tracked {
		commands = append(commands, linuxRules(bridge)...)
	}
	runCommands(nil, commands)
	socket, core := "unix:"+filepath.Join(r.dir, "bench.sock"), fmt.Sprint(guestCore)
	bin := filepath.Join(r.bin, "weft")
	r.start("server", netnsCommand(b, "taskset", "-c", core, bin, "bench", "server", "--listen", socket, "--raw", "v")...)
	client := netnsCommand(a, "taskset", "-c", core, bin, "bench", "client", socket, "--raw", "v", "-i", "0", "--flows", fmt.Sprint(n), "-t", fmt.Sprint((4*warmUp + 2*r.length).Seconds()))
	eventually(5*time.Second, func() {
		runCommands(nil, [][]string{append(client, "--rr", "-k", fmt.Sprint(n))})
	})
	sender := r.start("client", append(client, "-b", "0")...)
	time.Sleep(warmUp)
	c := r.countAt(b, "v")
	time.Sleep(warmTime)
	before := busySeconds(switchCore)
	rate := c.rate(r.length)
	r.note("busy", "%", 100*(busySeconds(switchCore)-before)/r.length.Seconds())
	lab.Check(sender.alive())
	return rate
}
