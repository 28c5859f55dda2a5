// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"weft/api"
	"weft/control/observe"
	"weft/control/ovsdb"
	"weft/control/pipeline"
	"weft/control/unixctl"
	"weft/control/usererr"
	"weft/internal/buildinfo"
	"weft/internal/logs"
	"weft/openflow"
)

// appctl returns the commands that the switch answers for ovs-appctl. They print what
// Open vSwitch prints as far as the switch has it.
func (d *Daemon) appctl() []unixctl.Command {
	text := func(f func() string) func([]string) (string, error) {
		return func([]string) (string, error) { return f(), nil }
	}
	return append(append(d.dpctl(), d.bondCommands()...), []unixctl.Command{
		{Name: "version", Run: text(func() string {
			return fmt.Sprintf("ovs-vswitchd (Weft) %s\nweftd %s\n", ovsdb.OVSVersion, buildinfo.Own())
		})},
		{Name: "exit", Usage: "[--cleanup]", Most: 1, Changes: true, Run: d.appctlExit},
		{Name: "fdb/show", Usage: "bridge", Least: 1, Most: 1, Run: d.appctlFDB},
		{Name: "fdb/flush", Usage: "[bridge]", Most: 1, Changes: true, Run: d.appctlFlushFDB},
		{Name: "dpif/show", Run: text(d.appctlPorts)},
		{Name: "ofproto/list", Run: text(func() string { return strings.Join(d.bridgeList(), "\n") + "\n" })},
		{Name: "ofproto/trace", Usage: "bridge flow", Least: 2, Most: 2, Run: d.appctlTrace},
		{Name: "bfd/show", Usage: "[interface]", Most: 1, Run: d.appctlBFD},
		{Name: "coverage/show", Run: text(d.appctlCoverage)},
		{Name: "memory/show", Run: text(func() string {
			c := d.pipeline.Counts()
			return fmt.Sprintf("ports:%d rules:%d udpif keys:%d macs:%d\n", len(d.pipeline.View().Ports()), c.Flows, c.Megaflows, c.MACs)
		})},
		{Name: "vlog/list", Run: text(func() string {
			return fmt.Sprintf("                 console    syslog    file\n                 -------    ------    ------\nweftd            %-7s    OFF        OFF\n",
				strings.ToUpper(d.config.LogSettings.Level()))
		})},
		{Name: "vlog/set", Usage: "{spec | PATTERN:facility:pattern}", Least: 1, Most: 16, Changes: true, Run: d.appctlLog},
		{Name: "vlog/reopen", Run: text(func() string { return "" })}, // the log is the standard error output
	}...)
}

func (d *Daemon) bridgeList() (names []string) {
	for _, b := range d.bridges.List() {
		names = append(names, b.Name)
	}
	return names
}

// appctlExit ends this process after its answer. With --cleanup the engine ends too.
func (d *Daemon) appctlExit(words []string) (string, error) {
	switch {
	case len(words) == 0:
		d.done.Go(d.handOverNow)
	case words[0] == "--cleanup":
		d.done.Go(d.shutDown)
	default:
		return "", usererr.Errorf("%s: expected --cleanup", words[0])
	}
	return "", nil
}

func (d *Daemon) appctlFDB(words []string) (string, error) {
	b, err := d.bridges.Find(words[0])
	if err != nil {
		return "", err
	}
	numbers := map[uint32]uint32{}
	ports, _ := d.ports.List("") // fails for an unknown name only
	for i := range ports {
		numbers[ports[i].Number] = ports[i].InFlows()
	}
	var out strings.Builder
	out.WriteString(" port  VLAN  MAC                Age\n")
	for _, m := range d.macs.List(b.Number) {
		port := fmt.Sprint(numbers[m.PortNumber])
		if numbers[m.PortNumber] == api.LocalPort {
			port = "LOCAL"
		}
		fmt.Fprintf(&out, "%5s  %4d  %s  %3d\n", port, m.VLAN, m.MAC, int(m.AgeS))
	}
	return out.String(), nil
}

func (d *Daemon) appctlFlushFDB(words []string) (string, error) {
	bridges := words
	if len(words) == 0 {
		bridges = d.bridgeList()
	}
	for _, name := range bridges {
		b, err := d.bridges.Find(name)
		if err == nil {
			_, err = d.macs.Flush(b.Number, "")
		}
		if err != nil {
			return "", err
		}
	}
	return "table successfully flushed\n", nil
}

func (d *Daemon) appctlPorts() string {
	var hits, misses uint64
	for _, w := range d.statistics.Workers() {
		hits, misses = hits+w.ExactHits+w.MegaflowHits, misses+w.Misses
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s: hit:%d missed:%d\n", datapathName, hits, misses)
	ports, _ := d.ports.List("") // fails for an unknown name only
	for _, b := range d.bridges.List() {
		fmt.Fprintf(&out, "  %s:\n", b.Name)
		for i := range ports {
			if p := &ports[i]; p.Type != "mirror" && (p.Bridge == b.Name || p.Bridge == "" && b.First) {
				fmt.Fprintf(&out, "    %s %d/%d: (%s)\n", p.Name, p.InFlows(), p.Number, p.Type)
			}
		}
	}
	return out.String()
}

func (d *Daemon) appctlTrace(words []string) (string, error) {
	b, err := d.bridges.Find(words[0])
	if err != nil {
		return "", err
	}
	var trace api.Trace
	const shown = pipeline.ByName
	b.Pipeline.Tracing(shown, func(t *pipeline.Tracer, view *pipeline.View, names openflow.Names) {
		tlvs := b.Pipeline.TLVs()
		trace, err = observe.Trace(t, openflow.WithTLVs(view, tlvs), openflow.WithTLVs(names, tlvs), d.bridgeNames(view, shown), words[1], "")
	})
	if err != nil {
		return "", err
	}
	return trace.Text(), nil
}

func (d *Daemon) appctlBFD(words []string) (string, error) {
	name := ""
	if len(words) > 0 {
		name = words[0]
	}
	ports, err := d.ports.List(name)
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

// appctlCoverage prints the reasons of drops, which are what the switch counts for support.
func (d *Daemon) appctlCoverage() string {
	drops := map[string]uint64{}
	for _, w := range d.statistics.Workers() {
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

// appctlLog sets the log's level to the level in the last word, such as dbg or
// ANY:console:info. There is one level for all modules.
func (d *Daemon) appctlLog(words []string) (string, error) {
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
	return "", d.config.LogSettings.Set(level, "")
}
