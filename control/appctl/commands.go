// SPDX-License-Identifier: Apache-2.0

// Package appctl has the commands that the switch answers for ovs-appctl and ovs-dpctl. They print what
// Open vSwitch 3.1 prints, as far as the switch has it. Package unixctl carries commands and answers.
package appctl

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"weft/api"
	"weft/control/bridges"
	"weft/control/macs"
	"weft/control/observe"
	"weft/control/ovsdb"
	"weft/control/pipeline"
	"weft/control/ports"
	"weft/control/statistics"
	"weft/control/tracking"
	"weft/control/unixctl"
	"weft/control/usererr"
	"weft/internal/buildinfo"
	"weft/internal/logs"
	"weft/openflow"
)

// Setup has the objects whose state the commands show and change. The daemon owns them.
type Setup struct {
	Bridges     *bridges.Bridges
	Ports       *ports.Ports
	Pipeline    *pipeline.Pipeline
	MACs        *macs.MACs
	Statistics  *statistics.Statistics
	Tracking    *tracking.Connections
	HandOver    func()    // ends this process and leaves the engine to the next one; returns at once
	ShutDown    func()    // ends this process and the engine; returns at once
	LogSettings *logs.Log // settings of Log
	Log         *slog.Logger
}

type commands struct{ Setup }

// Commands returns the commands of ovs-appctl that the switch has, for unixctl.Open.
func Commands(setup Setup) []unixctl.Command {
	c := &commands{setup}
	text := func(f func() string) func([]string) (string, error) {
		return func([]string) (string, error) { return f(), nil }
	}
	return append(append(c.dpctl(), c.bondCommands()...), []unixctl.Command{
		{Name: "version", Run: text(func() string {
			return fmt.Sprintf("ovs-vswitchd (Weft) %s\nweftd %s\n", ovsdb.OVSVersion, buildinfo.Own())
		})},
		{Name: "exit", Usage: "[--cleanup]", Most: 1, Changes: true, Run: c.exit},
		{Name: "fdb/show", Usage: "bridge", Least: 1, Most: 1, Run: c.showFDB},
		{Name: "fdb/flush", Usage: "[bridge]", Most: 1, Changes: true, Run: c.flushFDB},
		{Name: "fdb/stats-show", Usage: "bridge", Least: 1, Most: 1, Run: c.showFDBStatistics},
		{Name: "fdb/stats-clear", Usage: "[bridge]", Most: 1, Changes: true, Run: c.clearFDBStatistics},
		{Name: "dpif/show", Run: text(c.showPorts)},
		{Name: "ofproto/list", Run: text(func() string { return strings.Join(c.bridgeList(), "\n") + "\n" })},
		{Name: "ofproto/trace", Usage: "bridge flow", Least: 2, Most: 2, Run: c.trace},
		{Name: "bfd/show", Usage: "[interface]", Most: 1, Run: c.showBFD},
		{Name: "coverage/show", Run: text(c.showCoverage)},
		{Name: "memory/show", Run: text(func() string {
			n := c.Pipeline.Counts()
			return fmt.Sprintf("ports:%d rules:%d udpif keys:%d macs:%d\n", len(c.Pipeline.View().Ports()), n.Flows, n.Megaflows, n.MACs)
		})},
		{Name: "vlog/list", Run: text(func() string {
			return fmt.Sprintf("                 console    syslog    file\n                 -------    ------    ------\nweftd            %-7s    OFF        OFF\n",
				strings.ToUpper(c.LogSettings.Level()))
		})},
		{Name: "vlog/set", Usage: "{spec | PATTERN:facility:pattern}", Least: 1, Most: 16, Changes: true, Run: c.setLog},
		{Name: "vlog/reopen", Run: text(func() string { return "" })}, // the log is the standard error output
	}...)
}

func (c *commands) bridgeList() (names []string) {
	for _, b := range c.Bridges.List() {
		names = append(names, b.Name)
	}
	return names
}

// exit ends this process after the command's answer. The engine process continues to forward, except with
// --cleanup.
func (c *commands) exit(words []string) (string, error) {
	switch {
	case len(words) == 0:
		c.HandOver()
	case words[0] == "--cleanup":
		c.ShutDown()
	default:
		return "", usererr.Errorf("%s: expected --cleanup", words[0])
	}
	return "", nil
}

func (c *commands) showFDB(words []string) (string, error) {
	b, err := c.Bridges.Find(words[0])
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString(" port  VLAN  MAC                Age\n")
	for _, m := range c.MACs.List(b.Number) {
		port := fmt.Sprint(m.PortNumber)
		if m.PortNumber == api.LocalPort {
			port = "LOCAL"
		}
		age := fmt.Sprintf("%3d", int(m.AgeS))
		if m.Declared {
			age = "static"
		}
		fmt.Fprintf(&out, "%5s  %4d  %s  %s\n", port, m.VLAN, m.MAC, age)
	}
	return out.String(), nil
}

func (c *commands) flushFDB(words []string) (string, error) {
	return "table successfully flushed\n", c.eachBridge(words, func(number uint8) error {
		_, err := c.MACs.Flush(number, "")
		return err
	})
}

// eachBridge calls do with the number of each named bridge, or of all bridges if names is empty, until do
// fails or there is no bridge with a name.
func (c *commands) eachBridge(names []string, do func(number uint8) error) error {
	if len(names) == 0 {
		names = c.bridgeList()
	}
	for _, name := range names {
		b, err := c.Bridges.Find(name)
		if err == nil {
			err = do(b.Number)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *commands) showFDBStatistics(words []string) (string, error) {
	b, err := c.Bridges.Find(words[0])
	if err != nil {
		return "", err
	}
	declared := 0
	for _, m := range c.MACs.List(b.Number) {
		if m.Declared {
			declared++
		}
	}
	s := c.Pipeline.Addresses().StatisticsOf(b.Number)
	var out strings.Builder
	fmt.Fprintf(&out, "Statistics for bridge \"%s\":\n", words[0])
	fmt.Fprintf(&out, "  Current/maximum MAC entries in the table: %d/%d\n", s.Now+declared, s.Limit)
	fmt.Fprintf(&out, "  Current static MAC entries in the table : %d\n", declared)
	fmt.Fprintf(&out, "  Total number of learned MAC entries     : %d\n", s.Learned)
	fmt.Fprintf(&out, "  Total number of expired MAC entries     : %d\n", s.Expired)
	fmt.Fprintf(&out, "  Total number of evicted MAC entries     : %d\n", s.Evicted)
	fmt.Fprintf(&out, "  Total number of port moved MAC entries  : %d\n", s.Moved)
	return out.String(), nil
}

// clearFDBStatistics sets the counters of fdb/stats-show to 0.
func (c *commands) clearFDBStatistics(words []string) (string, error) {
	return "statistics successfully cleared\n", c.eachBridge(words, func(number uint8) error {
		c.Pipeline.Addresses().ClearStatistics(number)
		return nil
	})
}

func (c *commands) showPorts() string {
	var hits, misses uint64
	for _, w := range c.Statistics.Workers() {
		hits, misses = hits+w.ExactHits+w.MegaflowHits, misses+w.Misses
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s: hit:%d missed:%d\n", datapathName, hits, misses)
	ports, _ := c.Ports.List("") // fails for an unknown name only
	for _, b := range c.Bridges.List() {
		fmt.Fprintf(&out, "  %s:\n", b.Name)
		for i := range ports {
			if p := &ports[i]; p.Type != "mirror" && (p.Bridge == b.Name || p.Bridge == "" && b.First) {
				fmt.Fprintf(&out, "    %s %d/%d: (%s)\n", p.Name, p.InFlows(), p.Number, p.Type)
			}
		}
	}
	return out.String()
}

func (c *commands) trace(words []string) (string, error) {
	b, err := c.Bridges.Find(words[0])
	if err != nil {
		return "", err
	}
	var trace api.Trace
	const shown = pipeline.ByName
	b.Pipeline.Tracing(shown, func(t *pipeline.Tracer, view *pipeline.View, names openflow.Names) {
		tlvs := b.Pipeline.TLVs()
		trace, err = observe.Trace(t, openflow.WithTLVs(view, tlvs), openflow.WithTLVs(names, tlvs), c.Bridges.TraceNames(view, shown), words[1], "")
	})
	if err != nil {
		return "", err
	}
	return trace.Text(), nil
}

func (c *commands) showBFD(words []string) (string, error) {
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	ports, err := c.Ports.List(name)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for i := range ports {
		for _, r := range ports[i].Remotes {
			if r.BFD == nil {
				continue
			}
			fmt.Fprintf(&out, "---- %s ----\n\tForwarding: %t\n\tDetect Time: %dms\n\tLocal Session State: %s\n\tLocal Diagnostic: %s\n"+
				"\tRemote Session State: %s\n\tRemote Diagnostic: %s\n\n", ports[i].Name, r.BFD.State == "up", r.BFD.DetectionMS, r.BFD.State, r.BFD.Diagnostic,
				r.BFD.RemoteState, r.BFD.RemoteDiagnostic)
		}
	}
	return out.String(), nil
}

// showCoverage prints the counts of dropped frames by reason. They replace Open vSwitch's
// coverage counters.
func (c *commands) showCoverage() string {
	drops := map[string]uint64{}
	for _, w := range c.Statistics.Workers() {
		for reason, n := range w.Drops {
			drops[reason] += n
		}
	}
	var out strings.Builder
	out.WriteString("Event coverage, drops by reason:\n")
	for _, reason := range slices.Sorted(maps.Keys(drops)) {
		fmt.Fprintf(&out, "drop_%-24s total: %d\n", reason, drops[reason])
	}
	return out.String()
}

// setLog sets the log's level to the level in the last word, such as dbg or
// ANY:console:info. There is one level for all modules.
func (c *commands) setLog(words []string) (string, error) {
	word := words[len(words)-1]
	if strings.HasPrefix(strings.ToUpper(word), "PATTERN:") || strings.HasPrefix(strings.ToUpper(word), "FACILITY:") {
		return "", usererr.Errorf("%s: the log has no patterns; expected a level", word)
	}
	level := strings.ToLower(word[strings.LastIndexByte(word, ':')+1:])
	if other, has := map[string]string{"dbg": "debug", "err": "error", "emer": "error"}[level]; has {
		level = other
	}
	if _, err := logs.ParseLevel(level); err != nil {
		return "", usererr.Errorf("%s: expected dbg, info, warn or err", word)
	}
	return "", c.LogSettings.Set(level, "")
}
