// SPDX-License-Identifier: Apache-2.0

// Command democentral demonstrates weft-central in about a minute: three centrals, four
// hosts and their guests, all in network namespaces, declared by one file.
//
//	central a, b, c        hosts h1 ... h4, each with weftd --central
//	172.16.0.11-13         172.16.0.101-104, AF_XDP and packet sockets in turn
//	      └──────────┬─────────────┘
//	          one bridge, MTU 1600
//
// On each host is a guest of network blue (b1 ... b4, 10.0.0.x) and one of network red
// (r1 ... r4, 10.0.1.x). A guest is a namespace with a tap.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"weft/e2e/lab"
)

const (
	underlayMTU = 1600
	guestMTU    = 1500
	limit       = 3 * time.Minute
	// wait is the time limit of one step.
	wait = time.Minute
	// gap is the interval in seconds of the pings that measure an outage.
	gap = 0.02
)

var (
	nets  = map[string]int{"blue": 100, "red": 200}
	hosts = []string{"h1", "h2", "h3", "h4"}
)

func main() {
	flag.StringVar(&lab.Binaries, "bin", "", "folder of weftd, weft and weft-central; built from the tree if empty")
	flag.Parse()
	lab.Demonstrate("demo-central", limit, run)
}

func run() (err error) {
	defer lab.Caught(&err)
	c := lab.Console()
	l := lab.New(c)
	c.Logf("building weftd, weft and weft-central")
	l.Build()
	d := &demo{Program: c, lab: l, guests: map[string]*lab.FleetGuest{}}
	d.fleet = l.NewFleet(underlayMTU)
	d.fleet.Echo = func(line string) { fmt.Printf("        admin# %s\n", strings.ReplaceAll(line, l.Dir+"/", "")) }
	d.start()
	d.pings()
	d.leaderDies()
	d.move()
	d.stopCentrals()
	d.report()
	c.Logf("cleaning up")
	l.Close()
	return nil
}

// row is a line of the printed table.
type row struct{ name, measured string }

type demo struct {
	lab.Program
	lab    *lab.Lab
	fleet  *lab.Fleet
	guests map[string]*lab.FleetGuest
	rows   []row
}

func (d *demo) measured(name, format string, args ...any) {
	r := row{name, fmt.Sprintf(format, args...)}
	d.rows = append(d.rows, r)
	d.Logf("%s: %s", r.name, r.measured)
}

func (d *demo) guest(net string, i int) *lab.FleetGuest {
	second := map[string]int{"blue": 0, "red": 1}[net]
	name := fmt.Sprint(net[:1], i)
	g := d.fleet.Guest(name, net, fmt.Sprintf("02:00:00:00:%02x:%02x", second, i), fmt.Sprintf("10.0.%d.%d", second, i))
	d.guests[name] = g
	return g
}

func (d *demo) start() {
	begin := time.Now()
	d.Logf("the first central: weft-central init, weft-central run")
	d.fleet.AddCentral("a")
	d.measured("the first central serves", "%v", since(begin))
	var list []*lab.FleetGuest
	for i := range hosts {
		list = append(list, d.guest("blue", i+1), d.guest("red", i+1))
	}
	file := d.fleet.File(nets, hosts, list)
	begin = time.Now()
	fmt.Print(indent(d.fleet.Weft("apply", file)))
	d.measured("weft apply of 2 networks, 4 hosts and 8 ports", "%v", since(begin))
	d.Logf("central b: weft-central join, weft-central run")
	d.fleet.AddCentral("b")
	for i, name := range hosts {
		uplink := []string{"af_xdp", "af_packet"}[i%2]
		d.Logf("%s: weft central enrol, weftd --central, uplink %s, taps b%d and r%d", name, uplink, i+1, i+1)
		host := d.fleet.AddHost(name, uplink)
		d.guests[fmt.Sprint("b", i+1)].Attach(host, guestMTU)
		d.guests[fmt.Sprint("r", i+1)].Attach(host, guestMTU)
	}
	d.Logf("central c: weft-central join, weft-central run")
	d.fleet.AddCentral("c")
}

func since(begin time.Time) time.Duration { return time.Since(begin).Round(time.Millisecond) }

func indent(text string) string {
	return "        " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n        ") + "\n"
}

// pings checks that guests of the same network reach each other, and guests of
// different networks do not.
func (d *demo) pings() {
	begin := time.Now()
	out := d.fleet.Weft("sync", "--wait=hosts")
	d.measured("weft sync --wait=hosts", "%v, %s", since(begin), strings.TrimSpace(out))
	d.Logf("pings between all guests")
	var mu sync.Mutex
	var running sync.WaitGroup
	var answered, pairs, crossed int
	var sum float64
	for _, from := range d.guests {
		running.Go(func() {
			for _, to := range d.guests {
				if from == to {
					continue
				}
				ping := lab.Ping
				if from.Net == to.Net {
					_, ping = lab.WaitPing(from, to.IP, wait), lab.PingAll
				}
				p, _ := ping(from, to.IP, 2)
				mu.Lock()
				switch {
				case from.Net != to.Net:
					crossed += p.Received
				case p.Received == p.Sent && p.Sent > 0:
					answered, sum = answered+1, sum+p.AvgMS
					fallthrough
				default:
					pairs++
				}
				mu.Unlock()
			}
		})
	}
	running.Wait()
	if answered != pairs || crossed > 0 {
		d.Fatalf("%d of %d pairs of a network answer, %d pings crossed networks", answered, pairs, crossed)
	}
	d.measured("pairs of one network that ping each other", "%d of %d, %.2f ms on average", answered, pairs, sum/float64(answered))
	d.measured("pings answered from another network", "%d", crossed)
}

// reachable waits until a ping between two guests is answered. A permanent neighbour
// entry makes ARP unnecessary, because ARP repeats a request only after a second, which
// would make the measured time inexact.
func (d *demo) reachable(from, to *lab.FleetGuest) {
	from.Run("ip", "neighbour", "replace", to.IP, "lladdr", to.MAC, "dev", "eth0", "nud", "permanent")
	from.Run("ping", "-n", "-q", "-i", fmt.Sprint(gap), "-c", "1", "-w", fmt.Sprint(int(wait.Seconds())), to.IP)
}

// leaderDies kills the weft-central server whose etcd member is the leader, while a port is being
// added.
func (d *demo) leaderDies() {
	added := d.guest("blue", 5)
	d.Logf("h2: tap b5, which nobody has declared yet")
	added.Attach(d.fleet.Hosts[1], guestMTU)
	leader, _, err := d.fleet.Members()
	if err != nil {
		d.Fatalf("%v", err)
	}
	bystander := d.guests["b1"].StartPings(d.guests["b3"].IP, 200, gap)
	d.Logf("SIGKILL of the leader, %s, while b5 is declared", leader.Host)
	leader.Kill()
	begin := time.Now()
	d.fleet.Weft("port", "add", "b5", "net=blue", "mac="+added.MAC, "addresses="+added.IP)
	d.measured("SIGKILL of the leader: weft port add acknowledged after", "%v", since(begin))
	for _, name := range []string{"b1", "b3", "b4"} {
		d.reachable(d.guests[name], added)
	}
	d.measured("SIGKILL of the leader: the new port reachable from all hosts after", "%v", since(begin))
	d.lost("SIGKILL of the leader: pings lost between other guests", bystander)
	d.Logf("%s runs again", leader.Host)
	leader.Run()
	d.fleet.Weft("sync", "--wait=hosts")
}

func (d *demo) lost(name string, pings *lab.Pinging) {
	p, err := pings.Wait(wait)
	if err != nil {
		d.Fatalf("%v", err)
	}
	d.measured(name, "%d of %d", p.Sent-p.Received, p.Sent)
	if p.Received < p.Sent {
		d.Fatalf("%s: %d of %d", name, p.Sent-p.Received, p.Sent)
	}
}

func (d *demo) move() {
	d.Logf("guest r2 moves from h2 to h3")
	d.fleet.Weft("port", "set", "r2", "host=h2")
	d.fleet.Weft("port", "set", "r2", "host=h2", "move-to=h3", "--wait=hosts")
	old := d.guests["r2"]
	moved := d.fleet.Guest("r2-new", "red", old.MAC, old.IP)
	d.fleet.Hosts[2].Weft("add-port", "r2", "type=tap", "dev=eth0", "netns="+moved.NS, "mac="+old.MAC, fmt.Sprint("mtu=", guestMTU))
	d.fleet.Weft("sync", "--wait=hosts")
	d.reachable(d.guests["r4"], old) // at h2
	old.Run("ip", "link", "set", "eth0", "down")
	moved.Address("eth0", moved.IP+"/16")
	begin := time.Now()
	d.reachable(moved, d.guests["r1"])
	d.measured("a moved port: its first frame to its first answer", "%v", since(begin))
	for _, name := range []string{"r1", "r3", "r4"} {
		d.reachable(d.guests[name], moved)
	}
	d.measured("a moved port: reachable from all hosts after", "%v", since(begin))
	d.fleet.Hosts[1].Weft("del-port", "r2")
	d.guests["r2"] = moved
	d.fleet.Weft("sync", "--wait=hosts")
	fmt.Print(indent(d.fleet.Weft("port", "why", "r2")))
}

func (d *demo) stopCentrals() {
	d.Logf("all centrals off; then control of h1 is killed and starts again")
	pings := d.guests["b1"].StartPings(d.guests["b4"].IP, 200, gap)
	for _, c := range d.fleet.Centrals {
		c.Kill()
	}
	d.fleet.Hosts[0].Control().Kill()
	time.Sleep(500 * time.Millisecond)
	d.fleet.Hosts[0].Start()
	d.lost("all centrals off, control of h1 restarted: pings lost", pings)
	begin := time.Now()
	for _, c := range d.fleet.Centrals {
		c.Run()
	}
	for {
		out, err := d.fleet.Try("sync", "--wait=hosts")
		if err == nil && strings.Contains(out, fmt.Sprint(len(hosts), " hosts")) {
			break
		}
		if time.Since(begin) > wait {
			d.Fatalf("the hosts do not come back: %s %v", out, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	d.measured("all centrals start again: all hosts follow after", "%v", since(begin))
}

func (d *demo) report() {
	fmt.Println()
	fmt.Print(d.fleet.Weft("central", "status"))
	fmt.Printf("\nMeasured (all processes on this machine; a ping each %v)\n\n", time.Duration(gap*float64(time.Second)))
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	for _, r := range d.rows {
		fmt.Fprintf(w, "%s\t%s\n", r.name, r.measured)
	}
	w.Flush()
	fmt.Println()
}
