// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"weft/api"
	"weft/cmd/exit"
	"weft/openflow"
)

// hostPlan is the list of steps that change a switch from one state to another. Flows may refer to
// other objects, so an object is deleted only after the flows have changed.
type hostPlan struct {
	Lines []string // differences, for the user; a line begins with + (new), ~ (changed) or - (deleted)
	// checks are requests to the daemon before the first step. Each asks whether the daemon would
	// refuse a step that adds or changes a port.
	checks []func(*api.Client) error
	steps  []api.Change
	// last has functions that add further steps when the plan of a bridge is otherwise complete.
	last []func()
}

func (p *hostPlan) step(change api.Change, format string, args ...any) {
	p.Lines = append(p.Lines, fmt.Sprintf(format, args...))
	p.steps = append(p.steps, change)
}

// planHost returns the steps that change a switch from oldState to newState. Both are normalized.
// Without prune, objects that are only in oldState stay.
func planHost(oldState, newState *hostFile, names hostPorts, prune bool) (*hostPlan, error) {
	p := &hostPlan{}
	if err := p.bridges(oldState, newState); err != nil {
		return nil, err
	}
	if err := p.firstBridge(oldState, newState, prune); err != nil {
		return nil, err
	}
	p.ports(oldState, newState)
	// Connection tracking comes before the tables. If the daemon refuses this step, it can still take
	// back the steps before it. It cannot take back changes of tables.
	p.tracking(oldState.Conntrack, newState.Conntrack, prune)
	if err := p.contents(&oldState.bridgeContents, &newState.bridgeContents, names.inBridge(""), prune); err != nil {
		return nil, err
	}
	for i := range newState.Bridges {
		b := &newState.Bridges[i]
		was := &bridgeContents{}
		if o := oldState.bridge(b.Name); o != nil {
			was = &o.bridgeContents
		}
		if err := p.onBridge(b.Name, was, &b.bridgeContents, names.inBridge(b.Name), prune); err != nil {
			return nil, err
		}
	}
	if !prune {
		return p, nil
	}
	for _, port := range oldState.LocalPorts {
		if !slices.ContainsFunc(newState.LocalPorts, func(n localPort) bool { return n.Name == port.Name }) {
			p.step(api.Change{DelPort: port.Name}, "- local-port %s", port.Name)
		}
	}
	for _, b := range oldState.Bridges {
		if newState.bridge(b.Name) == nil {
			p.step(api.Change{DelBridge: b.Name}, "- bridge %s", b.Name)
		}
	}
	return p, nil
}

// bridge returns the bridge with this name, or nil. f.Bridges does not have the first bridge, whose
// settings are fields of f.
func (f *hostFile) bridge(name string) *hostBridge {
	i := slices.IndexFunc(f.Bridges, func(b hostBridge) bool { return b.Name == name })
	if i < 0 {
		return nil
	}
	return &f.Bridges[i]
}

// bridges plans which bridges to add, and which controllers and fail modes of existing bridges to
// change.
func (p *hostPlan) bridges(old, next *hostFile) error {
	for _, b := range next.Bridges {
		was := old.bridge(b.Name)
		if was == nil {
			add := api.AddBridge{Name: b.Name, DatapathID: b.DatapathID, FailMode: b.FailMode, Controllers: b.Controllers, Bare: true}
			p.step(api.Change{AddBridge: &add}, "+ bridge %s", b.Name)
			continue
		}
		if b.DatapathID != "" && b.DatapathID != was.DatapathID {
			return exit.Usagef("bridge %s: the datapath-id of a bridge does not change; expected the present one, or del-br first", b.Name)
		}
		p.controllers(b.Name, was.FailMode, b.FailMode, was.Controllers, b.Controllers)
	}
	return nil
}

// firstBridge plans the change of the controllers and the fail mode of the first bridge, which always exists.
func (p *hostPlan) firstBridge(old, next *hostFile, prune bool) error {
	named := next.FailMode != "" || len(next.Controllers) > 0
	switch {
	case named && old.first == "":
		return exit.Usagef("controllers, fail-mode: the first bridge has no name; expected weftd --name")
	case named || prune:
		p.controllers(old.first, old.FailMode, next.FailMode, old.Controllers, next.Controllers)
	}
	return nil
}

// controllers plans the change of the controllers and the fail mode of a bridge. An empty mode stands
// for secure.
func (p *hostPlan) controllers(bridge, oldMode, mode string, old, next []string) {
	mode = cmp.Or(mode, api.FailSecure)
	if mode == cmp.Or(oldMode, api.FailSecure) && slices.Equal(old, next) {
		return
	}
	mod := api.ModBridge{FailMode: mode, Controllers: &next, Bare: true}
	if next == nil {
		mod.Controllers = &[]string{}
	}
	p.step(api.Change{Bridge: bridge, ModBridge: &mod},
		"~ bridge %s fail-mode=%s controllers=%s", bridge, mode, strings.Join(next, ","))
}

// onBridge plans the changes of tables and flows of a bridge other than the first one.
func (p *hostPlan) onBridge(name string, old, next *bridgeContents, names openflow.Names, prune bool) error {
	own := &hostPlan{}
	if err := own.contents(old, next, names, prune); err != nil {
		return fmt.Errorf("bridge %s: %w", name, err)
	}
	for _, line := range own.Lines {
		p.Lines = append(p.Lines, fmt.Sprintf("%s bridge %s %s", line[:1], name, line[2:]))
	}
	for _, step := range own.steps {
		step.Bridge = name
		p.steps = append(p.steps, step)
	}
	return nil
}

// contents plans the changes of one bridge in this order: TLV map, meters, groups, tables, flows.
// Deletions of groups, meters and TLV mappings come after the flows.
func (p *hostPlan) contents(old, next *bridgeContents, names openflow.Names, prune bool) error {
	p.tlvs(old, next, prune)
	p.numbered("meter", old.Meters, next.Meters, "modify")
	p.numbered("group", old.Groups, next.Groups, "put")
	p.tables(old, next, prune)
	if err := p.flows(old, next, names, prune); err != nil {
		return err
	}
	if err := checkTables(old, next, names, prune); err != nil {
		return err
	}
	if prune {
		p.deletions("group", "group_id=", old.Groups, next.Groups)
		p.deletions("meter", "meter=", old.Meters, next.Meters)
	}
	for _, plan := range p.last {
		plan()
	}
	p.last = nil
	return nil
}

func (p *hostPlan) ports(old, next *hostFile) {
	for _, port := range next.LocalPorts {
		i := slices.IndexFunc(old.LocalPorts, func(o localPort) bool { return o.Name == port.Name })
		if i < 0 {
			words := optionWords(port.Options)
			// The file may also add the bridge of this port. The daemon can check the port only if the
			// bridge exists.
			if b := port.Options["bridge"]; b == "" || old.bridge(b) != nil {
				p.checks = append(p.checks, func(c *api.Client) error { return c.CheckPort(port.Name, words) })
			}
			p.step(api.Change{AddPort: &api.AddPort{Name: port.Name, Options: words}}, "+ local-port %s %s", port.Name, strings.Join(words, " "))
			continue
		}
		was := old.LocalPorts[i].Options
		var words []string
		for _, key := range slices.Sorted(maps.Keys(was)) {
			if _, stays := port.Options[key]; !stays {
				words = append(words, key+"=")
			}
		}
		for _, word := range optionWords(port.Options) {
			key, value, _ := strings.Cut(word, "=")
			if had, ok := was[key]; !ok || had != value {
				words = append(words, word)
			}
		}
		if len(words) > 0 {
			p.checks = append(p.checks, func(c *api.Client) error { return c.CheckModPort(port.Name, words) })
			p.step(api.Change{Port: port.Name, ModPort: &api.ModPort{Options: words}}, "~ local-port %s %s", port.Name, strings.Join(words, " "))
		}
	}
}

// optionWords returns the options of a port as KEY=VALUE words. The option type is first, as add-port wants
// it.
func optionWords(options map[string]string) []string {
	words := []string{"type=" + options["type"]}
	for _, key := range slices.Sorted(maps.Keys(options)) {
		if key != "type" {
			words = append(words, key+"="+options[key])
		}
	}
	return words
}

// number returns the text of a group or a meter up to the end of its number, as in group_id=5. This
// part identifies the group or meter.
func number(text string) string { return text[:strings.IndexAny(text+" ", ", ")] }

// changeOf returns a step that changes groups (if kind is "group") or meters.
func changeOf(kind string, change api.ChangeTable) api.Change {
	if kind == "group" {
		return api.Change{Groups: &change}
	}
	return api.Change{Meters: &change}
}

// numbered plans the additions and changes of groups or meters. One step adds all new ones. A second
// step changes existing ones; "modify" is the name of its operation in the API. numbered plans no
// deletions.
func (p *hostPlan) numbered(kind string, old, next []string, modify string) {
	was := map[string]string{}
	for _, text := range old {
		was[number(text)] = text
	}
	var added, changed []string
	for _, text := range next {
		switch before, there := was[number(text)]; {
		case !there:
			added = append(added, text)
			p.Lines = append(p.Lines, "+ "+kind+" "+text)
		case before != text:
			changed = append(changed, text)
			p.Lines = append(p.Lines, "~ "+kind+" "+text)
		}
	}
	send := func(op string, texts []string) {
		if len(texts) > 0 {
			p.steps = append(p.steps, changeOf(kind, api.ChangeTable{Op: op, Text: lines(texts), File: true}))
		}
	}
	send("add", added)
	send(modify, changed)
}

func (p *hostPlan) deletions(kind, prefix string, old, next []string) {
	for _, text := range old {
		key := number(text)
		if slices.ContainsFunc(next, func(n string) bool { return number(n) == key }) {
			continue
		}
		p.step(changeOf(kind, api.ChangeTable{Op: "delete", Text: prefix + strings.TrimPrefix(key, prefix)}), "- %s %s", kind, key)
	}
}

// tlvs plans the changes of the TLV map, which maps Geneve options to match fields. New mappings come
// before the flows that use them. A mapping that has the same option or field as a new one is deleted
// before it. Other mappings are deleted last, after the flows have changed.
func (p *hostPlan) tlvs(old, next *bridgeContents, prune bool) {
	change := func(op string, mappings []string) api.Change {
		return api.Change{TLVs: &api.ChangeTLVs{Op: op, Text: strings.Join(mappings, ",")}}
	}
	// replaces reports whether two mappings have the same option or the same field. Both have the form of
	// openflow.TLVMapping.String.
	replaces := func(a, b string) bool {
		optionA, fieldA, _ := strings.Cut(a, ",len=")
		optionB, fieldB, _ := strings.Cut(b, ",len=")
		return optionA == optionB || fieldA[strings.Index(fieldA, "}"):] == fieldB[strings.Index(fieldB, "}"):]
	}
	for _, o := range old.TLVs {
		switch {
		case slices.Contains(next.TLVs, o):
		case slices.ContainsFunc(next.TLVs, func(n string) bool { return replaces(n, o) }):
			p.step(change("delete", []string{o}), "- tlv-map %s", o)
		case prune:
			p.last = append(p.last, func() { p.step(change("delete", []string{o}), "- tlv-map %s", o) })
		}
	}
	var added []string
	for _, m := range next.TLVs {
		if !slices.Contains(old.TLVs, m) {
			p.Lines = append(p.Lines, "+ tlv-map "+m)
			added = append(added, m)
		}
	}
	if len(added) > 0 {
		p.steps = append(p.steps, change("add", added))
	}
}

func (p *hostPlan) tables(old, next *bridgeContents, prune bool) {
	set := func(t tableSetting) api.Change {
		words := []string{"noevict", fmt.Sprint("limit:", t.Limit)}
		if t.Evict {
			words[0] = "evict"
		}
		return api.Change{Table: &api.ModTable{Table: t.Table, Settings: words}}
	}
	for _, t := range next.Tables {
		if !slices.Contains(old.Tables, t) {
			p.step(set(t), "~ table %d limit=%d evict=%t", t.Table, t.Limit, t.Evict)
		}
	}
	for _, t := range old.Tables {
		if prune && !slices.ContainsFunc(next.Tables, func(n tableSetting) bool { return n.Table == t.Table }) {
			p.step(set(tableSetting{Table: t.Table}), "- table %d limit=%d evict=%t", t.Table, t.Limit, t.Evict)
		}
	}
}

func (p *hostPlan) tracking(old, next *trackSettings, prune bool) {
	if next == nil {
		return
	}
	send := func(change api.ChangeConntrack, format string, args ...any) {
		p.step(api.Change{Conntrack: &change}, format, args...)
	}
	if old.MaxConnections != next.MaxConnections {
		send(api.ChangeConntrack{MaxConnections: &next.MaxConnections}, "~ conntrack max-connections %d", next.MaxConnections)
	}
	if old.SequenceChecks != next.SequenceChecks {
		send(api.ChangeConntrack{SequenceChecks: &next.SequenceChecks}, "~ conntrack sequence-checks %t", next.SequenceChecks)
	}
	if old.DefaultLimit != next.DefaultLimit {
		send(api.ChangeConntrack{DefaultLimit: &next.DefaultLimit}, "~ conntrack default-limit %d", next.DefaultLimit)
	}
	if differ(old.Timeouts, next.Timeouts) {
		send(api.ChangeConntrack{Timeouts: next.Timeouts}, "~ conntrack timeouts %v", next.Timeouts)
	}
	for _, z := range next.Zones {
		i := slices.IndexFunc(old.Zones, func(o trackZone) bool { return o.Zone == z.Zone })
		was := trackZone{Zone: z.Zone}
		if i >= 0 {
			was = old.Zones[i]
		}
		if z.Limit != nil && !reflect.DeepEqual(was.Limit, z.Limit) {
			send(api.ChangeConntrack{Limits: []api.ZoneLimit{{Zone: z.Zone, Limit: *z.Limit}}}, "~ conntrack zone %d limit %d", z.Zone, *z.Limit)
		}
		if differ(was.Timeouts, z.Timeouts) {
			send(api.ChangeConntrack{Timeouts: z.Timeouts, TimeoutZone: &z.Zone}, "~ conntrack zone %d timeouts %v", z.Zone, z.Timeouts)
		}
	}
	for _, z := range old.Zones {
		if !prune || slices.ContainsFunc(next.Zones, func(n trackZone) bool { return n.Zone == z.Zone }) {
			continue
		}
		if z.Limit != nil {
			send(api.ChangeConntrack{ClearLimits: []uint16{z.Zone}}, "- conntrack zone %d limit %d", z.Zone, *z.Limit)
		}
		if len(z.Timeouts) > 0 {
			send(api.ChangeConntrack{ClearTimeouts: true, TimeoutZone: &z.Zone}, "- conntrack zone %d timeouts", z.Zone)
		}
	}
}

// differ reports whether a file changes a timeout of connection tracking. oldTimeouts has all timeouts
// of the switch in seconds, fileTimeouts those that are in the file.
func differ(oldTimeouts, fileTimeouts map[string]uint32) bool {
	for name, seconds := range fileTimeouts {
		if was, ok := oldTimeouts[name]; !ok || was != seconds {
			return true
		}
	}
	return false
}

// flows plans one step that adds and replaces flows. With prune, the step also deletes the flows that
// are not in the file.
func (p *hostPlan) flows(old, next *bridgeContents, names openflow.Names, prune bool) error {
	was, err := old.flowsByKey(names)
	if err != nil {
		return err
	}
	is, err := next.flowsByKey(names)
	if err != nil {
		return err
	}
	if len(is) < len(next.Flows) {
		return exit.Usagef("flows: expected each table, priority and match once")
	}
	var changes []string
	for _, key := range slices.Sorted(maps.Keys(is)) {
		before, there := was[key]
		switch {
		case !there:
			p.Lines = append(p.Lines, "+ flow "+is[key])
		case before != is[key]:
			p.Lines = append(p.Lines, "~ flow "+is[key])
		default:
			continue
		}
		changes = append(changes, is[key])
	}
	for _, key := range slices.Sorted(maps.Keys(was)) {
		if _, stays := is[key]; prune && !stays {
			p.Lines = append(p.Lines, "- flow "+was[key])
			changes = append(changes, "delete_strict "+strings.TrimSuffix(key, ","))
		}
	}
	if len(changes) > 0 {
		p.steps = append(p.steps, api.Change{Flows: lines(changes)})
	}
	return nil
}

// flowsByKey returns the texts of the flows. The keys of the map are the results of flowKey.
func (f *bridgeContents) flowsByKey(names openflow.Names) (map[string]string, error) {
	tlvs, err := f.tlvMap()
	if err != nil {
		return nil, err
	}
	names = openflow.WithTLVs(names, tlvs)
	mods, err := openflow.ParseFlowMods(lines(f.Flows), openflow.Add, names)
	if err != nil {
		return nil, err
	}
	m := make(map[string]string, len(mods))
	for i := range mods {
		m[flowKey(&mods[i], names)] = f.Flows[i]
	}
	return m, nil
}

// hostApplied is the JSON output of "weft apply" for a file of one switch.
type hostApplied struct {
	Changes []string `json:"changes"`
	Applied bool     `json:"applied"`
}

// applyHost changes the switch to the state in a file, in one transaction of the daemon. Before that it
// checks the file. The checks do not find a device that fails, a wrong setting of connection tracking,
// or a wrong port of a bridge that the file adds. If such a step fails, applyHost restores the old
// state.
func (c *command) applyHost(name string, text []byte, dry, prune bool) error {
	next, err := parseHostFile(text)
	if err != nil {
		return ofHostFile(name, err)
	}
	client, err := c.client()
	if err != nil {
		return err
	}
	client = client.On("") // the file names the bridges
	old, _, err := readHost(client)
	if err != nil {
		return err
	}
	ports, err := client.Ports("")
	if err != nil {
		return err
	}
	names := filePortsOf(ports, next.LocalPorts, old.first)
	if err := next.normalizeAll(names); err != nil {
		return ofHostFile(name, exit.Usagef("%v", err))
	}
	plan, err := planHost(old, next, names, prune)
	if err != nil {
		return ofHostFile(name, err)
	}
	if !c.json {
		for _, line := range plan.Lines {
			fmt.Fprintln(c.out, line)
		}
	}
	for _, check := range plan.checks {
		if err := check(client); err != nil {
			return err
		}
	}
	if !dry && len(plan.steps) > 0 {
		if err := client.Change(plan.steps); err != nil {
			return c.goBack(client, old, err)
		}
	}
	return c.printHostApplied(&hostApplied{Changes: orEmpty(plan.Lines), Applied: !dry && len(plan.Lines) > 0}, dry)
}

// goBack restores the state "old" after the daemon has refused a step of a file with the error "cause".
// It returns this error, and adds whether a part of the file is still in force.
func (c *command) goBack(client *api.Client, old *hostFile, cause error) error {
	now, names, err := readHost(client)
	if err == nil {
		var plan *hostPlan
		if plan, err = planHost(now, old, names, true); err == nil {
			if len(plan.steps) == 0 { // the daemon has refused the file before the first change took effect
				return cause
			}
			err = client.Change(plan.steps)
		}
	}
	if err != nil {
		return fmt.Errorf("%w; a part of the file is in force, because going back failed: %v", cause, err)
	}
	return fmt.Errorf("%w; nothing of the file is in force", cause)
}

func (c *command) printHostApplied(result *hostApplied, dry bool) error {
	if c.json {
		return c.printJSON(result)
	}
	var err error
	switch {
	case len(result.Changes) == 0:
		_, err = fmt.Fprintln(c.out, "no differences")
	case dry:
		_, err = fmt.Fprintf(c.out, "%d differences, nothing applied\n", len(result.Changes))
	default:
		_, err = fmt.Fprintf(c.out, "%d changes applied\n", len(result.Changes))
	}
	return err
}

// ofHostFile returns an input error with the name of the file of a switch in front of err; "-": standard
// input.
func ofHostFile(name string, err error) error {
	if name == "-" {
		name = "standard input"
	}
	return exit.Usagef("%s: %v", name, err)
}

// exportHost prints the state of the switch in the format of the file for "weft apply".
func (c *command) exportHost() error {
	client, err := c.client()
	if err != nil {
		return err
	}
	f, _, err := readHost(client)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(f)
	}
	text, err := f.format()
	if err == nil {
		_, err = c.out.Write(text)
	}
	return err
}
