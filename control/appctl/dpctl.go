// SPDX-License-Identifier: Apache-2.0

package appctl

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"weft/api"
	"weft/conntrack"
	"weft/control/observe"
	"weft/control/ovsdb"
	"weft/control/pipeline"
	"weft/control/unixctl"
	"weft/control/usererr"
)

// datapathName is Open vSwitch's name of its userspace data path, which all bridges share.
const datapathName = "netdev@ovs-netdev"

// dpctl returns the commands about the data path and its connections. Errors and answers have
// the words of ovs-dpctl(8).
func (c *commands) dpctl() []unixctl.Command {
	nothing := func([]string) (string, error) { return "", nil }
	commands := []unixctl.Command{
		{Name: "dpctl/dump-dps", Run: func([]string) (string, error) { return datapathName + "\n", nil }},
		{Name: "dpctl/show", Usage: "[dp]", Most: 3, Run: c.dpctlShow},
		{Name: "dpctl/dump-flows", Usage: "[-m] [--names] [dp] [filter=FLOW] [type=TYPE]", Most: 6, Run: c.dpctlFlows},
		{Name: "dpif/dump-flows", Usage: "[-m] [--names] bridge", Least: 1, Most: 3, Run: c.dpifFlows},
		{Name: "dpctl/dump-conntrack", Usage: "[-m] [-s] [dp] [zone=zone] [mark=mark[/mask]] [labels=label[/mask]] [CT_TUPLE [CT_TUPLE]]", Most: 9, Run: c.dpctlConnections},
		{Name: "dpctl/dump-conntrack-exp", Usage: "[dp] [zone=zone]", Most: 2, Run: c.dpctlExpectations},
		{Name: "dpctl/flush-conntrack", Usage: "[dp] [zone=zone] [mark=mark[/mask]] [labels=label[/mask]] [CT_TUPLE [CT_TUPLE]]", Most: 6, Changes: true, Run: c.dpctlFlush},
		{Name: "dpctl/ct-stats-show", Usage: "[-m] [dp] [zone=zone]", Most: 3, Run: c.dpctlStats},
		{Name: "dpctl/ct-get-nconns", Usage: "[dp]", Most: 1, Run: c.ctSetting(func(s *api.Conntrack) string { return strconv.Itoa(s.Connections) })},
		{Name: "dpctl/ct-get-maxconns", Usage: "[dp]", Most: 1, Run: c.ctSetting(func(s *api.Conntrack) string { return strconv.Itoa(s.MaxConnections) })},
		{Name: "dpctl/ct-set-maxconns", Usage: "[dp] maxconns", Least: 1, Most: 2, Changes: true, Run: c.dpctlMaxConns},
		{Name: "dpctl/ct-get-tcp-seq-chk", Usage: "[dp]", Most: 1, Run: c.ctSetting(func(s *api.Conntrack) string {
			return "TCP sequence checking: " + map[bool]string{true: "enabled", false: "disabled"}[s.SequenceChecks]
		})},
		{Name: "dpctl/ct-enable-tcp-seq-chk", Usage: "[dp]", Most: 1, Changes: true, Run: c.ctSequence(true)},
		{Name: "dpctl/ct-disable-tcp-seq-chk", Usage: "[dp]", Most: 1, Changes: true, Run: c.ctSequence(false)},
		{Name: "dpctl/ct-set-limits", Usage: "[dp] [default=L] [zone=N,limit=L]...", Least: 1, Most: 64, Changes: true, Run: c.dpctlSetLimits},
		{Name: "dpctl/ct-del-limits", Usage: "[dp] [default] zone=N1[,N2...]", Least: 1, Most: 3, Changes: true, Run: c.dpctlDeleteLimits},
		{Name: "dpctl/ct-get-limits", Usage: "[dp] [zone=N1[,N2...]]", Most: 2, Run: c.dpctlLimits},
		{Name: "dpif/show-dp-features", Usage: "bridge", Least: 1, Most: 1, Run: c.dpifFeatures},
		{Name: "dpif/set-dp-features", Usage: "bridge feature value", Least: 3, Most: 3, Changes: true, Run: c.dpifSetFeature},
		// Nobody needs to wait, because a change is in force when its call returns, and counters are
		// always current.
		{Name: "revalidator/wait", Run: nothing},
		{Name: "revalidator/purge", Changes: true, Run: nothing},
		{Name: "upcall/show", Run: c.upcallShow},
	}
	return append(commands, unixctl.RouteCommands()...)
}

// refusal returns an error in the form of ovs-dpctl. The cause is a text of strerror(3), such
// as "Invalid argument".
func refusal(cause, format string, words ...any) error {
	return usererr.Errorf("ovs-vswitchd: %s (%s)", fmt.Sprintf(format, words...), cause)
}

const invalid = "Invalid argument"

// withoutDatapath returns the words without options and without the data path's name. If more
// than limit words are left, it treats the first one as the name of a data path that does not
// exist.
func withoutDatapath(words []string, limit int) ([]string, error) {
	var rest []string
	for _, w := range words {
		if !strings.HasPrefix(w, "-") || w == "-" {
			rest = append(rest, w)
		}
	}
	if len(rest) > 0 && rest[0] == datapathName {
		return rest[1:], nil
	}
	if len(rest) > limit {
		return nil, refusal(invalid, "datapath not found")
	}
	return rest, nil
}

// connectionFilter parses the filter of connections in the words after the data path's name.
// limit is as for withoutDatapath.
func connectionFilter(words []string, limit int) (conntrack.Filter, error) {
	args, err := withoutDatapath(words, limit)
	if err != nil {
		return conntrack.Filter{}, err
	}
	filter, err := conntrack.ParseFilter(args)
	if err != nil {
		return conntrack.Filter{}, usererr.Mark(err)
	}
	return filter, nil
}

// hasOption reports whether one of the words is one of these options.
func hasOption(words []string, options ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return slices.Contains(options, w) })
}

func (c *commands) dpctlShow([]string) (string, error) {
	var hits, misses, flows uint64
	for _, w := range c.Statistics.Workers() {
		hits, misses = hits+w.ExactHits+w.MegaflowHits, misses+w.Misses
	}
	flows = uint64(c.Pipeline.Counts().Megaflows)
	var out strings.Builder
	fmt.Fprintf(&out, "%s:\n  lookups: hit:%d missed:%d lost:0\n  flows: %d\n", datapathName, hits, misses, flows)
	ports, _ := c.Ports.List("") // fails for an unknown name only
	for i := range ports {
		fmt.Fprintf(&out, "  port %d: %s (%s)\n", ports[i].Number, ports[i].Name, ports[i].Type)
	}
	return out.String(), nil
}

func (c *commands) dpctlConnections(words []string) (string, error) {
	filter, err := connectionFilter(words, 5)
	if err != nil {
		return "", err
	}
	options := conntrack.FormatOptions{More: hasOption(words, "-m", "--more"), Statistics: hasOption(words, "-s", "--statistics")}
	var text []byte
	c.Tracking.Each(&filter, func(e *conntrack.Entry) { text = append(e.AppendTo(text, options), '\n') }, func() bool { return true })
	return string(text), nil
}

func (c *commands) dpctlExpectations(words []string) (string, error) {
	filter, err := connectionFilter(words, 1)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	c.Tracking.EachExpected(filter.Zone, func(e *conntrack.Expected) { out.WriteString(observe.Expectation(e).Line + "\n") })
	return out.String(), nil
}

func (c *commands) dpctlFlush(words []string) (string, error) {
	args, err := withoutDatapath(words, 5)
	if err != nil {
		return "", err
	}
	filter, err := conntrack.ParseFilter(args)
	if err != nil {
		return "", usererr.Errorf("%s\n%v", wrongFilter(args), err)
	}
	_, err = c.Tracking.Flush(&filter)
	return "", err
}

// wrongFilter returns Open vSwitch's error text about the first invalid word of a filter of
// connections.
func wrongFilter(args []string) string {
	for i, arg := range args {
		if _, err := conntrack.ParseFilter(args[:i+1]); err == nil {
			continue
		}
		for _, name := range []string{"zone", "mark", "labels"} {
			if strings.HasPrefix(arg, name+"=") {
				return "failed to parse " + name
			}
		}
		for _, field := range strings.FieldsFunc(arg, func(r rune) bool { return r == ',' || r == ' ' }) {
			name, _, isField := strings.Cut(field, "=")
			if _, err := conntrack.ParseFilter([]string{field}); err == nil {
				continue
			}
			switch {
			case !isField:
				return "invalid arguments"
			case conntrack.IsTupleField(name):
				return "failed to parse field " + name
			}
			return "invalid conntrack tuple field: " + name
		}
	}
	return "invalid arguments"
}

func (c *commands) dpctlStats(words []string) (string, error) {
	filter, err := connectionFilter(words, 1)
	if err != nil {
		return "", err
	}
	byProtocol, byState, total := map[string]int{}, map[string]int{}, 0
	names := map[string]string{"tcp": "TCP", "udp": "UDP", "icmp": "ICMP", "icmpv6": "ICMP", "sctp": "SCTP"}
	c.Tracking.Each(&filter, func(e *conntrack.Entry) {
		line := string(e.AppendTo(nil, conntrack.FormatOptions{}))
		protocol, _, _ := strings.Cut(line, ",")
		name, known := names[protocol]
		if !known {
			name = "Other"
		}
		total++
		byProtocol[name]++
		if _, rest, ok := strings.Cut(line, "protoinfo=(state="); ok && name == "TCP" {
			byState[rest[:strings.IndexAny(rest, ",)")]]++
		}
	}, func() bool { return true })
	var out strings.Builder
	fmt.Fprintf(&out, "Connections Stats:\n    Total: %d\n", total)
	for _, name := range []string{"TCP", "UDP", "SCTP", "ICMP", "Other"} {
		if byProtocol[name] == 0 {
			continue
		}
		fmt.Fprintf(&out, "  %s: %d\n", name, byProtocol[name])
		if name == "TCP" && hasOption(words, "-m", "--more") {
			out.WriteString("    Conn per TCP states:\n")
			for _, s := range slices.Sorted(maps.Keys(byState)) {
				fmt.Fprintf(&out, "      [%s]: %d\n", s, byState[s])
			}
		}
	}
	return out.String(), nil
}

// ctSetting returns a command that prints one setting of connection tracking. The function word returns
// the setting's value as text.
func (c *commands) ctSetting(word func(*api.Conntrack) string) func([]string) (string, error) {
	return func(words []string) (string, error) {
		if _, err := withoutDatapath(words, 0); err != nil {
			return "", err
		}
		s, err := c.Tracking.Settings()
		if err != nil {
			return "", err
		}
		return word(&s) + "\n", nil
	}
}

func (c *commands) ctSequence(strict bool) func([]string) (string, error) {
	return func(words []string) (string, error) {
		if _, err := withoutDatapath(words, 0); err != nil {
			return "", err
		}
		if err := c.Tracking.Change(&api.ChangeConntrack{SequenceChecks: &strict}); err != nil {
			return "", err
		}
		return map[bool]string{true: "Enabled", false: "Disabled"}[strict] + " TCP sequence checking successful\n", nil
	}
}

func (c *commands) dpctlMaxConns(words []string) (string, error) {
	n, err := strconv.ParseUint(words[len(words)-1], 10, 32)
	if err != nil {
		return "", refusal(invalid, "maxconns missing or malformed")
	}
	if _, err := withoutDatapath(words, 1); err != nil {
		return "", err
	}
	most := uint32(n)
	if err := c.Tracking.Change(&api.ChangeConntrack{MaxConnections: &most}); err != nil {
		return "", err
	}
	return "setting maxconns successful\n", nil
}

func (c *commands) dpctlSetLimits(words []string) (string, error) {
	if words[0] == datapathName {
		words = words[1:]
	}
	var change api.ChangeConntrack
	for _, w := range words {
		if value, is := strings.CutPrefix(w, "default="); is {
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil {
				return "", refusal(invalid, "invalid default limit")
			}
			limit := uint32(n)
			change.DefaultLimit = &limit
			continue
		}
		zone, limit, _ := strings.Cut(w, ",")
		z, err := strconv.ParseUint(strings.TrimPrefix(zone, "zone="), 10, 16)
		if err != nil || !strings.HasPrefix(zone, "zone=") {
			return "", refusal(invalid, "failed to parse field zone")
		}
		n, err := strconv.ParseUint(strings.TrimPrefix(limit, "limit="), 10, 32)
		if err != nil || !strings.HasPrefix(limit, "limit=") {
			return "", refusal(invalid, "failed to parse field limit")
		}
		change.Limits = append(change.Limits, api.ZoneLimit{Zone: uint16(z), Limit: uint32(n)})
	}
	return "", c.Tracking.Change(&change)
}

// zones parses the optional word zone=N[,N...] of a command about connection tracking.
func zones(words []string) (list []uint16, err error) {
	if len(words) == 0 {
		return nil, nil
	}
	numbers, is := strings.CutPrefix(words[0], "zone=")
	if !is || len(words) > 1 {
		return nil, refusal(invalid, "invalid argument")
	}
	for _, text := range strings.Split(numbers, ",") {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, refusal(invalid, "failed to parse zone")
		}
		list = append(list, uint16(n))
	}
	return list, nil
}

func (c *commands) dpctlDeleteLimits(words []string) (string, error) {
	words, err := withoutDatapath(words, 2)
	if err != nil {
		return "", err
	}
	byDefault := len(words) > 0 && words[0] == "default"
	if byDefault {
		words = words[1:]
	}
	list, err := zones(words)
	if err != nil {
		return "", err
	}
	return "", c.Tracking.Change(&api.ChangeConntrack{ClearDefaultLimit: byDefault, ClearLimits: list})
}

func (c *commands) dpctlLimits(words []string) (string, error) {
	words, err := withoutDatapath(words, 1)
	if err != nil {
		return "", err
	}
	list, err := zones(words)
	if err != nil {
		return "", err
	}
	s, err := c.Tracking.Settings()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "default limit=%d\n", s.DefaultLimit)
	byNumber := map[uint16]api.Zone{}
	for _, z := range s.Zones {
		byNumber[z.Zone] = z
		if len(list) == 0 && z.Limit != nil {
			fmt.Fprintf(&out, "zone=%d,limit=%d,count=%d\n", z.Zone, *z.Limit, z.Connections)
		}
	}
	for _, n := range list {
		limit := s.DefaultLimit
		if z := byNumber[n]; z.Limit != nil {
			limit = *z.Limit
		}
		fmt.Fprintf(&out, "zone=%d,limit=%d,count=%d\n", n, limit, byNumber[n].Connections)
	}
	return out.String(), nil
}

// dpifFeatures prints the data path's features, the same that ovsdb-server gets as
// Datapath.capabilities.
func (c *commands) dpifFeatures(words []string) (string, error) {
	if _, err := c.Bridges.Find(words[0]); err != nil {
		return "", err
	}
	return ovsdb.Features(), nil
}

// dpifSetFeature accepts the features that the data path has, and changes nothing. Open vSwitch
// without a feature moves the affected frames to its slow path, with the same result. Here all
// frames take one path.
func (c *commands) dpifSetFeature(words []string) (string, error) {
	if _, err := c.Bridges.Find(words[0]); err != nil {
		return "", err
	}
	if !ovsdb.HasFeature(words[1]) {
		return "", usererr.Errorf("%s: the data path has no such feature", words[1])
	}
	c.Log.Info("dpif/set-dp-features has no effect, there is one path for all frames", "feature", words[1], "value", words[2])
	return "", nil
}

func (c *commands) upcallShow([]string) (string, error) {
	n := c.Pipeline.Counts()
	return fmt.Sprintf("%s:\n  flows         : (current %d)\n", datapathName, n.Megaflows), nil
}

// dpctlFlows prints the megaflows whose text has all parts of the words filter=. The only type
// of flows is "ovs"; other types, such as flows in hardware, do not exist.
func (c *commands) dpctlFlows(words []string) (string, error) {
	var filter []string
	for _, w := range words {
		if f, is := strings.CutPrefix(w, "filter="); is {
			filter = append(filter, strings.Split(f, ",")...)
		}
		if t, is := strings.CutPrefix(w, "type="); is && t != "ovs" && t != "all" && t != "non-offloaded" {
			return "", nil
		}
	}
	return c.megaflowLines(words, func(m *api.Megaflow) bool {
		have := strings.Split(strings.ReplaceAll(m.Match, `"`, ""), ",")
		return !slices.ContainsFunc(filter, func(f string) bool { return !slices.Contains(have, f) })
	}), nil
}

// dpifFlows prints the megaflows of a bridge's ports.
func (c *commands) dpifFlows(words []string) (string, error) {
	name := words[len(words)-1]
	b, err := c.Bridges.Find(name)
	if err != nil {
		return "", err
	}
	members := map[string]bool{}
	ports, _ := c.Ports.List("") // fails for an unknown name only
	for i := range ports {
		if p := &ports[i]; p.Bridge == b.Name {
			members[p.Name] = true
		}
	}
	return c.megaflowLines(words, func(m *api.Megaflow) bool { return members[inPort(m.Match)] }), nil
}

// inPort returns the name of the input port in the text of a megaflow's match.
func inPort(match string) string {
	for _, field := range strings.Split(match, ",") {
		if name, is := strings.CutPrefix(field, "in_port="); is {
			return strings.Trim(name, `"`)
		}
	}
	return ""
}

// megaflowLines formats the megaflows for which "shown" returns true, in Open vSwitch's words.
// Ports have their numbers in the data path, or names with the option --names.
func (c *commands) megaflowLines(words []string, shown func(*api.Megaflow) bool) string {
	port := func(name string) string { return name }
	if !hasOption(words, "--names") {
		numbers := map[string]string{}
		ports, _ := c.Ports.List("") // fails for an unknown name only
		for i := range ports {
			numbers[ports[i].Name] = strconv.FormatUint(uint64(ports[i].Number), 10)
		}
		port = func(name string) string { return cmp.Or(numbers[name], name) }
	}
	var out strings.Builder
	for _, m := range c.Bridges.Megaflows().DumpMegaflows(pipeline.ByName) {
		if !shown(&m) {
			continue
		}
		used := "never"
		if m.UsedS != nil {
			used = fmt.Sprintf("%.3fs", *m.UsedS)
		}
		actions := strings.Split(m.Actions, ",")
		for i, a := range actions {
			if name := strings.Trim(a, `"`); name != a || port(name) != name {
				actions[i] = port(name)
			} else if strings.HasPrefix(a, "drop(") {
				actions[i] = "drop"
			}
		}
		fmt.Fprintf(&out, "%s, packets:%d, bytes:%d, used:%s, actions:%s\n", datapathMatch(m.Match, port), m.Packets, m.Bytes, used,
			strings.Join(actions, ","))
	}
	return out.String()
}
