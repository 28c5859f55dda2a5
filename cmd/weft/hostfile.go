// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"weft/api"
	"weft/central/declare"
	"weft/cmd/exit"
	"weft/internal/tomltext"
	"weft/openflow"
	"weft/openflow/ofproto"
)

// hostFile is a file with the state of one switch, for "weft apply" and "weft export". A file with
// weft-central's declaration has the same format (TOML) and is for the same commands. But it has other
// tables: net, group, host and port.
type hostFile struct {
	bridgeContents // of the first bridge
	// FailMode and Controllers are the settings of the first bridge from set-fail-mode and
	// set-controller. The file has neither if weftd's configuration file sets them.
	FailMode    string         `toml:"fail-mode,omitempty" json:"fail_mode,omitempty"`
	Controllers []string       `toml:"controllers,omitempty" json:"controllers,omitempty"`
	LocalPorts  []localPort    `toml:"local-port" json:"local_ports"`
	Conntrack   *trackSettings `toml:"conntrack" json:"conntrack,omitempty"`
	Bridges     []hostBridge   `toml:"bridge,omitempty" json:"bridges,omitempty"`
	first       string         // name of the first bridge, if it has one
}

// bridgeContents has the settings and tables of a bridge, without its ports.
type bridgeContents struct {
	// TLVs has the TLV map, which maps Geneve options to match fields, in the syntax of add-tlv-map.
	TLVs   []string `toml:"tlv-map,multiline,omitempty" json:"tlv_map,omitempty"`
	Meters []string `toml:"meters,multiline" json:"meters"`
	Groups []string `toml:"groups,multiline" json:"groups"`
	// Flows are in the syntax of add-flows. weft-central's flows, which have a table of their own, are
	// left out.
	Flows  []string       `toml:"flows,multiline" json:"flows"`
	Tables []tableSetting `toml:"table" json:"tables"`
}

// hostBridge is a bridge that add-br has added: any but the first one.
type hostBridge struct {
	Name        string   `toml:"name" json:"name"`
	DatapathID  string   `toml:"datapath-id,omitempty" json:"datapath_id,omitempty"`
	FailMode    string   `toml:"fail-mode,omitempty" json:"fail_mode,omitempty"`
	Controllers []string `toml:"controllers,omitempty" json:"controllers,omitempty"`
	bridgeContents
}

// localPort is a port that add-port has added. The tunnel port that weft-central needs is no local
// port.
type localPort struct {
	Name    string            `toml:"name" json:"name"`
	Options map[string]string `toml:"options,inline" json:"options"`
}

// tableSetting has the settings of a flow table that mod-table changes.
type tableSetting struct {
	Table int  `toml:"table" json:"table"`
	Limit int  `toml:"limit,omitempty" json:"limit,omitempty"` // largest number of flows; 0: no limit
	Evict bool `toml:"evict,omitempty" json:"evict,omitempty"`
}

// trackSettings has the settings of connection tracking. Commands such as ct-set-limits change them.
type trackSettings struct {
	MaxConnections uint32            `toml:"max-connections" json:"max_connections"`
	DefaultLimit   uint32            `toml:"default-limit" json:"default_limit"`
	SequenceChecks bool              `toml:"sequence-checks" json:"sequence_checks"`
	Timeouts       map[string]uint32 `toml:"timeouts" json:"timeouts_s"`
	Zones          []trackZone       `toml:"zone" json:"zones,omitempty"`
}

type trackZone struct {
	Zone     uint16            `toml:"zone" json:"zone"`
	Limit    *uint32           `toml:"limit,omitempty" json:"limit,omitempty"`
	Timeouts map[string]uint32 `toml:"timeouts,omitempty" json:"timeouts_s,omitempty"`
}

// centralTunnel is the name of the tunnel port that a switch adds when it uses weft-central.
const centralTunnel = "central"

// filePorts maps the port names of a bridge to OpenFlow numbers and back, for the parser of flows. It
// also has the ports that a file adds.
type filePorts struct {
	byName   map[string]uint32
	byNumber map[uint32]string
}

// hostPorts has the ports of each bridge by the bridge's name; "": the first bridge.
type hostPorts map[string]*filePorts

// inBridge returns the ports of a bridge; "": the first bridge. It adds an empty set for an unknown bridge.
func (h hostPorts) inBridge(bridge string) *filePorts {
	if h[bridge] == nil {
		h[bridge] = &filePorts{map[string]uint32{}, map[uint32]string{}}
	}
	return h[bridge]
}

func (p *filePorts) add(name string, port uint32) { p.byName[name], p.byNumber[port] = port, name }

func (p *filePorts) PortByName(name string) (port uint32, ok bool) {
	port, ok = p.byName[name]
	return port, ok
}

func (p *filePorts) PortName(port uint32) (string, bool) {
	name, ok := p.byNumber[port]
	return name, ok
}

// addedPorts is the first number for ports that a file adds and that do not exist yet. The daemon gives
// numbers so large only to ports with ofport_request. The numbers are used only in this process.
const addedPorts = 0x8000

// filePortsOf returns the ports of a switch and the ports that a file adds, by bridge. firstBridge is the
// name of the first bridge.
func filePortsOf(ports []api.Port, added []localPort, firstBridge string) hostPorts {
	h := hostPorts{}
	for i := range ports {
		h.inBridge(ports[i].Bridge).add(ports[i].Name, ports[i].InFlows())
	}
	for i := range added {
		name := added[i].Options["bridge"]
		if name == firstBridge {
			name = ""
		}
		bridge := h.inBridge(name)
		if _, there := bridge.byName[added[i].Name]; there {
			continue
		}
		number, err := strconv.ParseUint(added[i].Options["ofport_request"], 10, 16)
		if err != nil {
			number = uint64(addedPorts + i)
		}
		bridge.add(added[i].Name, uint32(number))
	}
	return h
}

// readHost asks the daemon for the state of its switch. It returns the state, normalized for
// comparison, and the ports of all bridges.
func readHost(client *api.Client) (*hostFile, hostPorts, error) {
	client = client.On("")
	ports, err1 := client.Ports("")
	bridges, err2 := client.Bridges()
	track, err3 := client.Conntrack()
	contents, err4 := readContents(client)
	if err := cmp.Or(err1, err2, err3, err4); err != nil {
		return nil, nil, err
	}
	f := &hostFile{bridgeContents: contents, Conntrack: trackOf(&track)}
	for i := range ports {
		if ports[i].Name != centralTunnel {
			f.LocalPorts = append(f.LocalPorts, localPort{ports[i].Name, ports[i].Options})
		}
	}
	for _, b := range bridges {
		if b.First {
			f.first = b.Name
			if !b.Configured {
				f.Controllers = b.Controllers
				if b.FailMode != api.FailSecure {
					f.FailMode = b.FailMode
				}
			}
			continue
		}
		contents, err := readContents(client.On(b.Name))
		if err != nil {
			return nil, nil, err
		}
		f.Bridges = append(f.Bridges, hostBridge{b.Name, b.DatapathID, b.FailMode, b.Controllers, contents})
	}
	names := filePortsOf(ports, nil, f.first)
	return f, names, f.normalizeAll(names)
}

// readContents asks the daemon for the TLV map, meters, groups, flows and tables of one bridge, that of
// the client.
func readContents(client *api.Client) (f bridgeContents, err error) {
	flows, err1 := client.Flows("")
	groups, err2 := client.Groups("")
	meters, err3 := client.Meters("")
	tables, err4 := client.Tables()
	tlvs, err5 := client.TLVMap()
	if err := cmp.Or(err1, err2, err3, err4, err5); err != nil {
		return f, err
	}
	for i := range tlvs.Mappings {
		f.TLVs = append(f.TLVs, tlvs.Mappings[i].Line)
	}
	for i := range flows {
		if flows[i].Table != ofproto.CentralTable {
			f.Flows = append(f.Flows, statistics.ReplaceAllString(flows[i].Line, ""))
		}
	}
	for i := range groups {
		f.Groups = append(f.Groups, groups[i].Line)
	}
	for i := range meters {
		f.Meters = append(f.Meters, meters[i].Line)
	}
	for _, t := range tables {
		if (t.Limit > 0 || t.Evict) && t.Table != ofproto.CentralTable {
			f.Tables = append(f.Tables, tableSetting{t.Table, t.Limit, t.Evict})
		}
	}
	return f, nil
}

// normalizeAll calls normalize for all bridges. An error of another bridge than the first begins with
// its name.
func (f *hostFile) normalizeAll(names hostPorts) error {
	if err := f.normalize(names.inBridge("")); err != nil {
		return err
	}
	for i := range f.Bridges {
		if err := f.Bridges[i].normalize(names.inBridge(f.Bridges[i].Name)); err != nil {
			return fmt.Errorf("bridge %s: %w", f.Bridges[i].Name, err)
		}
	}
	return nil
}

func trackOf(c *api.Conntrack) *trackSettings {
	t := &trackSettings{MaxConnections: uint32(c.MaxConnections), DefaultLimit: c.DefaultLimit, SequenceChecks: c.SequenceChecks, Timeouts: c.Timeouts}
	for _, z := range c.Zones {
		if z.Limit != nil || len(z.Timeouts) > 0 {
			t.Zones = append(t.Zones, trackZone{z.Zone, z.Limit, z.Timeouts})
		}
	}
	return t
}

// normalize brings the texts of flows, groups and meters into one form and order. Two equal states then
// have equal texts.
func (f *bridgeContents) normalize(names openflow.Names) error {
	tlvs, err := f.tlvMap()
	if err != nil {
		return err
	}
	f.TLVs = nil
	for _, m := range tlvs.Mappings() {
		f.TLVs = append(f.TLVs, m.String())
	}
	names = openflow.WithTLVs(names, tlvs)
	mods, err := openflow.ParseFlowMods(lines(f.Flows), openflow.Add, names)
	if err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	slices.SortStableFunc(mods, func(a, b openflow.FlowMod) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(flowKey(&a, names), flowKey(&b, names)))
	})
	f.Flows = nil
	for i := range mods {
		f.Flows = append(f.Flows, openflow.FormatFlowMod(&mods[i], names))
	}
	groups, err := openflow.ParseGroupMods(strings.NewReader(lines(f.Groups)), openflow.GroupAdd, names)
	if err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	slices.SortFunc(groups, func(a, b openflow.GroupMod) int { return cmp.Compare(a.Group.ID, b.Group.ID) })
	f.Groups = nil
	for i := range groups {
		f.Groups = append(f.Groups, openflow.FormatGroup(&groups[i].Group, names))
	}
	meters, err := openflow.ParseMeterMods(strings.NewReader(lines(f.Meters)), openflow.MeterAdd)
	if err != nil {
		return fmt.Errorf("meters: %w", err)
	}
	slices.SortFunc(meters, func(a, b openflow.MeterMod) int { return cmp.Compare(a.Meter.ID, b.Meter.ID) })
	f.Meters = nil
	for i := range meters {
		f.Meters = append(f.Meters, openflow.FormatMeter(&meters[i].Meter))
	}
	slices.SortFunc(f.Tables, func(a, b tableSetting) int { return cmp.Compare(a.Table, b.Table) })
	return nil
}

// tlvMap returns the TLV map that the mappings in TLVs make.
func (f *bridgeContents) tlvMap() (*openflow.TLVMap, error) {
	list, err := openflow.ParseTLVMappings(strings.Join(f.TLVs, ","))
	var m *openflow.TLVMap
	if err == nil {
		m, err = m.Changed(&openflow.TLVMod{Mappings: list})
	}
	if err != nil {
		return nil, fmt.Errorf("tlv-map: %w", err)
	}
	return m, nil
}

// flowKey returns the text of a flow's table, priority and match. It is unique in a bridge.
func flowKey(m *openflow.FlowMod, names openflow.Names) string {
	return fmt.Sprintf("table=%d,priority=%d,%s", m.Table, m.Priority, m.Match.Format(names))
}

func lines(list []string) string { return strings.Join(list, "\n") }

// format returns the text of the file, in TOML.
func (f *hostFile) format() ([]byte, error) {
	var text bytes.Buffer
	text.WriteString("# The state of one switch. weft apply FILE restores it.\n\n")
	enc := toml.NewEncoder(&text)
	enc.SetArraysMultiline(true)
	err := enc.Encode(f)
	return text.Bytes(), err
}

// isHostFile reports whether a file has the state of one switch. A file with weft-central's declaration
// has one of the tables net, group, host and port.
func isHostFile(text []byte) (bool, error) {
	var keys map[string]any
	if err := toml.Unmarshal(text, &keys); err != nil {
		return false, nil // declare.ParseFile then reports the error, with the line
	}
	localKeys, centralKeys := tomltext.Keys(reflect.TypeFor[hostFile](), nil), tomltext.Keys(reflect.TypeFor[declare.File](), nil)
	var local, central []string
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		switch {
		case slices.Contains(localKeys, key):
			local = append(local, key)
		case slices.Contains(centralKeys, key):
			central = append(central, key)
		default:
			return false, exit.Usagef("%s: unknown key; a file for one switch has %s, a file for weft-central %s",
				key, strings.Join(localKeys, ", "), strings.Join(centralKeys, ", "))
		}
	}
	if len(local) > 0 && len(central) > 0 {
		return false, exit.Usagef("%s is of one switch and %s of weft-central; expected a file for each", local[0], central[0])
	}
	return len(local) > 0, nil
}

// parseHostFile parses a file with the state of one switch. It does not normalize the contents.
func parseHostFile(text []byte) (*hostFile, error) {
	f := &hostFile{}
	if err := tomltext.Decode(text, f); err != nil {
		return nil, exit.Usagef("%v", err)
	}
	seen := map[string]bool{}
	for _, p := range f.LocalPorts {
		if p.Name == "" || p.Name == centralTunnel || seen[p.Name] || p.Options["type"] == "" {
			return nil, exit.Usagef("local-port %q: expected a name of its own, and options with a type", p.Name)
		}
		seen[p.Name] = true
	}
	bridges := map[string]bool{}
	for _, b := range f.Bridges {
		if b.Name == "" || bridges[b.Name] {
			return nil, exit.Usagef("bridge %q: expected a name of its own", b.Name)
		}
		bridges[b.Name] = true
	}
	return f, nil
}
