// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"weft/bench/hops"
)

// linuxHops measures the time that a datagram takes in the kernel, from the sendto call to the veth.
func linuxHops(r *run, variant string) (float64, error) {
	w, err := newSite(r)
	if err != nil {
		return 0, err
	}
	iptables := func(args ...string) []string {
		return netnsCommand(w.netns, append([]string{"iptables-legacy"}, args...)...)
	}
	if err := runCommands(nil, [][]string{
		w.ip("link", "add", "vx", "type", "vxlan", "id", "100", "local", w.local, "remote", w.remote, "dstport", "4789", "dev", w.dev),
		iptables("-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", "as recorded", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "RETURN"),
		iptables("-t", "nat", "-A", "POSTROUTING", "-s", "192.168.99.0/24", "-j", "MASQUERADE"),
		iptables("-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW,ESTABLISHED,RELATED", "-j", "ACCEPT"),
	}); err != nil {
		return 0, err
	}
	if err := addressHops("vx", w.netns); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	send := []string{self, hopsVerb, "-core", fmt.Sprint(switchCore), "-count", fmt.Sprint(hopsNewFlows)}
	if variant == hopsNew {
		send = append(send, "-new")
	} else {
		send[len(send)-1] = fmt.Sprint(10 * hopsNewFlows)
	}
	timed := netnsCommand(w.netns, send...)
	out, err := command(nil, timed[0], timed[1:]...)
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`ns a datagram: (\S+)`).FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no time: %s", out)
	}
	ns, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, err
	}
	if variant == hopsNew { // new connections need unused ports
		send = append(send, "-port", fmt.Sprint(10_000+hopsNewFlows))
	}
	return ns / 1e9, r.noteShares(w, send, ns/1e9)
}

// noteShares runs a command under perf. It divides the time total among the hops in proportion to
// perf's samples.
func (r *run) noteShares(w *site, args []string, total float64) error {
	data := filepath.Join(r.dir, "perf.data")
	record := netnsCommand(w.netns, append([]string{"perf", "record", "-q", "-e", "cpu-clock", "-F", "19997", "-g", "-o", data, "--"}, args...)...)
	if _, err := command(nil, record[0], record[1:]...); err != nil {
		return err
	}
	report, err := command(nil, "perf", "report", "--stdio", "--no-children", "--percent-limit", "0",
		"-g", "graph,0.0,callee,function,percent", "-i", data)
	if err != nil {
		return err
	}
	file := filepath.Join(r.dir, "linux.perf.txt")
	if err := os.WriteFile(file, []byte(report), 0o644); err != nil {
		return err
	}
	recording, err := hops.Read(file)
	if err != nil {
		return err
	}
	table, err := hops.NewTable()
	if err != nil {
		return err
	}
	ledger := table.Book(linuxPeer, recording.Unit, recording.Calls)
	for _, e := range ledger.Entries {
		r.note(e.Hop, "s", total*e.Value/ledger.Total)
	}
	return nil
}
