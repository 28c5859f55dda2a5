// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// This file has a storm of netlink messages. Another program in the switch's network namespace changes
// devices, addresses, routes and neighbours all the time, and the control process has to follow.

func netlinkAttacks() []*attack {
	return []*attack{
		{name: "netlink-storm", exclusive: true, attacker: "host",
			summary: "in the switch's network namespace, 1,000 addresses, routes and neighbours come and go, and a device gets another name 64 times, again and again",
			setup:   netlinkSetup, play: netlinkStorm, check: uplinkSends},
	}
}

const (
	flapping = 1000 // number of addresses, of routes and of neighbours
	renames  = 64
)

// netlinkSetup makes a device, and a file with the ip commands that change it.
func netlinkSetup(p *play) error {
	dev := p.name + "d"
	if _, err := p.site.host.Try("ip", "link", "add", dev, "type", "veth", "peer", "name", dev+"p"); err != nil {
		return err
	}
	p.later(func() { _, _ = p.site.host.Try("ip", "link", "delete", dev) })
	var b strings.Builder
	fmt.Fprintf(&b, "link set dev %s up\n", dev)
	for i := range flapping {
		fmt.Fprintf(&b, "address add 10.77.%d.%d/32 dev %s\n", i>>8, i&0xff, dev)
		fmt.Fprintf(&b, "route add 10.88.%d.%d/32 dev %s\n", i>>8, i&0xff, dev)
		fmt.Fprintf(&b, "neigh add 10.99.%d.%d lladdr 02:00:00:00:00:01 dev %s\n", i>>8, i&0xff, dev)
	}
	for i := range flapping { // the address goes last, because a device without addresses loses its routes
		fmt.Fprintf(&b, "neigh delete 10.99.%d.%d dev %s\n", i>>8, i&0xff, dev)
		fmt.Fprintf(&b, "route delete 10.88.%d.%d/32 dev %s\n", i>>8, i&0xff, dev)
		fmt.Fprintf(&b, "address delete 10.77.%d.%d/32 dev %s\n", i>>8, i&0xff, dev)
	}
	fmt.Fprintf(&b, "link set dev %s down\n", dev)
	for range renames / 2 {
		fmt.Fprintf(&b, "link set dev %s name %sx\nlink set dev %sx name %s\n", dev, dev, dev, dev)
	}
	file := filepath.Join(p.site.lab.Dir, dev)
	p.vars["batch"] = file
	return os.WriteFile(file, []byte(b.String()), 0o600)
}

func netlinkStorm(p *play) error {
	if out, err := p.site.host.Try("ip", "-force", "-batch", p.vars["batch"].(string)); err != nil {
		return fmt.Errorf("%w: %.200s", err, out)
	}
	return nil
}
