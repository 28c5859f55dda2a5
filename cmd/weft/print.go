// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"weft/api"
	"weft/internal/buildinfo"
)

func (c *command) printJSON(v any) error {
	enc := json.NewEncoder(c.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (c *command) table(header string) *tabwriter.Writer {
	w := tabwriter.NewWriter(c.out, 0, 8, 2, ' ', 0)
	if header != "" {
		fmt.Fprintln(w, header)
	}
	return w
}

func (c *command) showVerb() *cobra.Command {
	show := &cobra.Command{
		Use: "show", Short: "print the state of the daemon, its workers and ports", Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error {
			client, err := c.client()
			if err != nil {
				return err
			}
			s, err := client.Show()
			if err != nil {
				return err
			}
			if c.json {
				return c.printJSON(s)
			}
			return c.printShow(s)
		},
	}
	show.AddCommand(c.showLimitsVerb(), c.showRoutesVerb())
	return show
}

func (c *command) printShow(s api.Show) error {
	engine := "none"
	if s.EnginePID != 0 {
		engine = fmt.Sprintf("%s: pid %d", buildText(s.EngineVersion, s.EngineCommit), s.EnginePID)
	}
	if s.Name != "" {
		fmt.Fprintf(c.out, "switch %s\n", s.Name)
	}
	fmt.Fprintf(c.out, "weftd %s: pid %d, up %.0fs, state %s\n", buildText(s.Version, s.Commit), s.PID, s.UptimeS, s.StateDir)
	fmt.Fprintf(c.out, "engine %s, restarts %d\n", engine, s.Restarts)
	fmt.Fprintln(c.out, privilegeLine(&s))
	fmt.Fprintf(c.out, "flows %d, megaflows %d, learned addresses %d\n", s.Flows, s.Megaflows, s.MACs)
	if s.Central != nil {
		fmt.Fprintln(c.out, centralLine(s.Central))
	}
	fmt.Fprintln(c.out)
	w := c.table("WORKER\tCORE\tFRAMES\tEXACT\tMEGAFLOW\tMISSES\tDROPS\tPASSES\tSLEEPS\tPARKED\tBUSY")
	for i, k := range s.Workers {
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.3fs\n", i, k.Core, k.Frames, k.ExactHits,
			k.MegaflowHits, k.Misses, total(k.Drops), k.Passes, k.Sleeps, k.ParkedQueues, float64(k.BusyNS)/1e9)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.out)
	if err := c.printBridges(s.Bridges); err != nil {
		return err
	}
	w = c.table("PORT\tNAME\tTYPE\tSTATE\tOPTIONS\tDETAIL")
	for _, p := range s.Ports {
		if c.bridge != "" && p.Bridge != c.bridge && (p.Bridge != "" || c.bridge != s.Name) {
			continue // "show BRIDGE" only prints the ports of the bridge
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", portNumber(&p), p.Name, p.Type, p.State, optionText(p.Options), detail(p))
	}
	return w.Flush()
}

// manyCapabilities is the least number of capabilities for which privilegeLine prints the number instead of
// the names. Root has about 40 capabilities.
const manyCapabilities = 16

// privilegeLine returns a text about the user and the Linux capabilities of weftd's control process. It names
// the missing capabilities, and what they would be for.
func privilegeLine(s *api.Show) string {
	held := strings.Join(s.Capabilities, " ")
	switch n := len(s.Capabilities); {
	case n == 0:
		held = "no capability"
	case n >= manyCapabilities:
		held = fmt.Sprintf("%d capabilities", n)
	}
	line := fmt.Sprintf("control runs as user %s with %s", s.User, held)
	for i, m := range s.MissingCapabilities {
		word := ", "
		if i == 0 {
			word = "; lacks "
		}
		line += fmt.Sprintf("%s%s (%s)", word, m.Name, strings.Join(m.For, "; "))
	}
	return line
}

func (c *command) printBridges(list []api.Bridge) error {
	if len(list) == 0 {
		return nil
	}
	w := c.table("BRIDGE\tDATAPATH\tPORTS\tFLOWS\tFAIL MODE\tCONTROLLERS\tOPENFLOW SOCKET")
	for _, b := range list {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\t%s\n", b.Name, b.DatapathID, b.Ports, b.Flows, b.FailMode, dash(strings.Join(b.Controllers, ",")), dash(b.OpenFlowSocket))
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// buildText returns the version and the commit of a build as text. An engine of an early version does
// not report them; v is then "".
func buildText(v, commit string) string {
	if v == "" {
		return "of an unknown version"
	}
	return buildinfo.Build{Version: v, Commit: commit}.String()
}

func centralLine(s *api.Central) string {
	state := "not connected"
	if s.Connected {
		state = "connected to " + s.Address
	}
	line := fmt.Sprintf("central: %s, revision %d, networks %d, addresses %d", state, s.Revision, s.Nets, s.Addresses)
	if s.Trouble != "" {
		line += ", trouble: " + s.Trouble
	}
	return line
}

func detail(p api.Port) string {
	var parts []string
	if p.Mode != "" {
		parts = append(parts, "mode "+p.Mode)
	}
	if p.Reason != "" {
		parts = append(parts, p.Reason)
	}
	if p.Detail != "" {
		parts = append(parts, p.Detail)
	}
	for _, warning := range p.Warnings {
		parts = append(parts, "warning: "+warning)
	}
	return strings.Join(parts, "; ")
}

func optionText(options map[string]string) string {
	var words []string
	for k, v := range options {
		if strings.Contains(v, " ") {
			v = `"` + v + `"` // a shell needs the quotes
		}
		if k != "type" {
			words = append(words, k+"="+v)
		}
	}
	slices.Sort(words)
	return strings.Join(words, " ")
}

func total(drops map[string]uint64) uint64 {
	var n uint64
	for _, d := range drops {
		n += d
	}
	return n
}

func (c *command) printPortStats(ports []api.Port) error {
	w := c.table("PORT\tNAME\tTYPE\tSTATE\tRX-PACKETS\tRX-BYTES\tRX-DROPS\tTX-PACKETS\tTX-BYTES\tTX-DROPS\tDROP-REASONS")
	for _, p := range ports {
		s := p.Stats
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", portNumber(&p), p.Name, p.Type, p.State,
			s.RxPackets, s.RxBytes, total(s.RxDrops), s.TxPackets, s.TxBytes, s.TxDrops, dropReasons(&s))
	}
	return w.Flush()
}

// portNumber returns the port's OpenFlow number, or LOCAL, as the texts of flows show it.
func portNumber(p *api.Port) string {
	if p.Local {
		return "LOCAL"
	}
	return strconv.FormatUint(uint64(p.InFlows()), 10)
}

// dropReasons returns the numbers of a port's dropped frames by direction and reason, as in
// "rx:no-route=3 tx:tx-full=1".
func dropReasons(s *api.PortStats) string {
	var parts []string
	if len(s.RxDrops) > 0 {
		parts = append(parts, "rx:"+reasons(s.RxDrops))
	}
	if len(s.TxDropReasons) > 0 {
		parts = append(parts, "tx:"+reasons(s.TxDropReasons))
	}
	return strings.Join(parts, " ")
}

func reasons(drops map[string]uint64) string {
	names := make([]string, 0, len(drops))
	for name := range drops {
		names = append(names, name)
	}
	sort.Strings(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s=%d", name, drops[name])
	}
	return strings.Join(names, ",")
}

func (c *command) printMegaflows(flows []api.Megaflow) error {
	for _, f := range flows {
		used := "never"
		if f.UsedS != nil {
			used = fmt.Sprintf("%.3fs", *f.UsedS)
		}
		match := f.Match
		if match != "" {
			match += ", "
		}
		where := ""
		switch {
		case f.InKernel:
			where = "kernel:yes, "
		case f.Worker != "":
			where = "kernel:no (" + f.Worker + "), "
		}
		if _, err := fmt.Fprintf(c.out, "%spackets:%d, bytes:%d, used:%s, %sactions:%s\n",
			match, f.Packets, f.Bytes, used, where, f.Actions); err != nil {
			return err
		}
	}
	return nil
}

func (c *command) versionVerb() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "print the version of the client", Args: words(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if c.json {
				return c.printJSON(buildinfo.Own())
			}
			_, err := fmt.Fprintln(c.out, "weft "+buildinfo.Own().String())
			return err
		},
	}
}
