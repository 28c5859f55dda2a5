// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft/api"
	"weft/openflow/fdb"
)

// Tracker is the connection tracking, whose timeouts and limits the database configures.
type Tracker interface {
	Settings() (api.Conntrack, error)
	Change(change *api.ChangeConntrack) error
}

// FlowTables has the flow tables of all bridges, whose limits the database configures.
type FlowTables interface {
	Tables(bridge string) ([]api.Table, error)
	ModifyTable(bridge string, mod api.ModTable) error
	// SetVLANLimit sets how many VLAN tags of a frame the flows of all bridges see: 1 or 2.
	SetVLANLimit(limit int)
	// Learning returns how a bridge's action normal learns and forwards.
	Learning(bridge string) (Learning, error)
	SetLearning(bridge string, l Learning) error
}

// Learning has the settings of a bridge's action normal, see pipeline.Learning.
type Learning struct {
	Bounds        fdb.Bounds // limit and maximum age of learned addresses
	ForwardsBPDUs bool       // forward frames to reserved addresses too
}

// settings has the configuration in the database that concerns neither bridges nor ports.
type settings struct {
	zones        map[uint16]zone
	defaultLimit *uint32 // Datapath.ct_zone_default_limit
	tables       map[string]map[int]tableSettings
	learning     map[string]Learning // by bridge
	vlanLimit    int                 // VLAN tags of a frame that flows see: 1 or 2
}

// zone has the settings of a connection tracking zone, from a row in CT_Zone.
type zone struct {
	timeouts map[string]uint32 // seconds; nil: the defaults
	limit    *uint32
}

// tableSettings has the settings of a flow table, from a row in Flow_Table.
type tableSettings struct {
	limit int // most flows; 0: no limit
	evict bool
}

// wantedSettings returns the settings that the rows of the database ask for. The database may have
// several datapaths, but the switch has only one, which gets the zones of all. If two datapaths have
// the same zone, the one whose type is last in the alphabet counts, such as "system" after "netdev".
func wantedSettings(t tables) settings {
	w := settings{zones: map[uint16]zone{}, tables: map[string]map[int]tableSettings{}, learning: map[string]Learning{}, vlanLimit: 2}
	_, root := t.root()
	if root.get("other_config", "vlan-limit") == "1" { // by default Weft sees both tags, see docs/vlans.md
		w.vlanLimit = 1
	}
	datapaths := root["datapaths"].pairs
	for _, kind := range slices.SortedFunc(maps.Keys(datapaths), func(a, b any) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) }) {
		id, _ := datapaths[kind].(uuid)
		d := t["Datapath"][id]
		w.defaultLimit = cmp.Or(d.limit("ct_zone_default_limit"), w.defaultLimit)
		for number, ref := range d["ct_zones"].pairs {
			n, _ := number.(int64)
			id, _ := ref.(uuid)
			r := t["CT_Zone"][id]
			z := zone{limit: r.limit("limit")}
			for _, id := range r.refs("timeout_policy") {
				z.timeouts = t["CT_Timeout_Policy"][id].seconds("timeouts")
			}
			w.zones[uint16(n)] = z
		}
	}
	for _, id := range root.refs("bridges") {
		b := t["Bridge"][id]
		list := map[int]tableSettings{}
		for number, ref := range b["flow_tables"].pairs {
			n, _ := number.(int64)
			id, _ := ref.(uuid)
			r := t["Flow_Table"][id]
			limit, _ := r.number("flow_limit")
			list[int(n)] = tableSettings{limit: int(min(limit, math.MaxInt32)), evict: r.text("overflow_policy") == "evict"}
		}
		w.tables[b.text("name")] = list
		w.learning[b.text("name")] = wantedLearning(b, func(string, string) {})
	}
	return w
}

// wantedLearning returns the settings of a bridge's action normal, from the bridge's other_config. A
// number that is too large or too small is replaced by the nearest valid one. The default replaces
// 0, a negative number, and a text that is no number. wantedLearning calls the function warn for
// each value that it replaces.
func wantedLearning(b row, warn func(key, reason string)) (l Learning) {
	bounded := func(key, unit string, lowest, highest int64) int64 {
		text := b.get("other_config", key)
		if text == "" {
			return 0
		}
		n, err := strconv.ParseInt(text, 0, 64)
		switch used := min(max(n, lowest), highest); {
		case err != nil || n <= 0:
			warn(key, fmt.Sprintf("%s: expected %d to %d %s; the default is used", text, lowest, highest, unit))
			return 0
		case used != n:
			warn(key, fmt.Sprintf("%s: expected %d to %d %s; %d is used", text, lowest, highest, unit, used))
			return used
		}
		return n
	}
	l.Bounds.Limit = int(bounded("mac-table-size", "addresses", fdb.LeastLimit, fdb.DefaultLimit))
	l.Bounds.Age = time.Second * time.Duration(bounded("mac-aging-time", "seconds", int64(fdb.LeastAge/time.Second), int64(fdb.MostAge/time.Second)))
	switch text := b.get("other_config", "forward-bpdu"); strings.ToLower(text) {
	case "", "false":
	case "true":
		l.ForwardsBPDUs = true
	default:
		warn("forward-bpdu", text+": expected true or false; false is used")
	}
	return l
}

// limit returns the connection limit in a column, or nil if the column is empty or out of range.
func (r row) limit(column string) *uint32 {
	n, ok := r.number(column)
	if !ok || n < 0 || n > math.MaxUint32 {
		return nil
	}
	limit := uint32(n)
	return &limit
}

// seconds returns a column that maps the names of timeouts to seconds. It leaves out values out of
// range.
func (r row) seconds(column string) map[string]uint32 {
	m := map[string]uint32{}
	for name, n := range r[column].pairs {
		name, isText := name.(string)
		seconds, isNumber := n.(int64)
		if isText && isNumber && seconds >= 0 && seconds <= math.MaxUint32 {
			m[name] = uint32(seconds)
		}
	}
	return m
}

// kernelTimeouts are timeouts of Open vSwitch that only the kernel's connection tracking has. They are
// ignored.
var kernelTimeouts = []string{"tcp_syn_sent2", "tcp_retransmit", "tcp_unack"}

// agreeSettings changes the switch's settings until they agree with the rows. It returns false if no
// engine runs yet. The caller then tries again later.
func (c *Client) agreeSettings(w *settings) bool {
	if c.setup.Tables != nil {
		if c.vlanLimit != w.vlanLimit {
			c.setup.Tables.SetVLANLimit(w.vlanLimit)
			c.vlanLimit = w.vlanLimit
		}
		for _, bridge := range slices.Sorted(maps.Keys(w.tables)) {
			c.agreeTables(bridge, w.tables[bridge])
			c.agreeLearning(bridge, w.learning[bridge])
		}
	}
	if c.setup.Tracker == nil {
		return true
	}
	now, err := c.setup.Tracker.Settings()
	if err != nil {
		return false
	}
	present := map[uint16]api.Zone{}
	for _, z := range now.Zones {
		present[z.Zone] = z
		if z.Timeouts != nil && w.zones[z.Zone].timeouts == nil {
			c.changeZone(z.Zone, &api.ChangeConntrack{TimeoutZone: &z.Zone, ClearTimeouts: true})
		}
		if c.limited[z.Zone] && w.zones[z.Zone].limit == nil {
			c.changeZone(z.Zone, &api.ChangeConntrack{ClearLimits: []uint16{z.Zone}})
			delete(c.limited, z.Zone)
		}
	}
	for _, n := range slices.Sorted(maps.Keys(w.zones)) {
		c.agreeZone(n, w.zones[n], present[n], now.Timeouts)
	}
	if limit := w.defaultLimit; (limit != nil || c.defaultLimited) && valueOf(limit) != now.DefaultLimit {
		c.defaultLimited = limit != nil
		if err := c.setup.Tracker.Change(&api.ChangeConntrack{DefaultLimit: limit, ClearDefaultLimit: limit == nil}); err != nil {
			c.warn("ct_zone_default_limit", err.Error())
		}
	}
	return true
}

func valueOf(n *uint32) uint32 {
	if n == nil {
		return 0
	}
	return *n
}

// agreeZone sets the timeouts and the limit of a connection tracking zone to those of the database.
// "usual" has the default timeouts.
func (c *Client) agreeZone(number uint16, want zone, present api.Zone, usual map[string]uint32) {
	if want.timeouts != nil {
		timeouts := maps.Clone(usual)
		for name, seconds := range want.timeouts {
			if !slices.Contains(kernelTimeouts, name) {
				timeouts[name] = seconds
			}
		}
		if !maps.Equal(timeouts, present.Timeouts) {
			c.changeZone(number, &api.ChangeConntrack{TimeoutZone: &number, Timeouts: timeouts})
		}
	}
	if want.limit != nil {
		c.limited[number] = true
	}
	if want.limit != nil && (present.Limit == nil || *present.Limit != *want.limit) {
		c.changeZone(number, &api.ChangeConntrack{Limits: []api.ZoneLimit{{Zone: number, Limit: *want.limit}}})
	}
}

func (c *Client) changeZone(number uint16, change *api.ChangeConntrack) {
	if err := c.setup.Tracker.Change(change); err != nil {
		c.warn(fmt.Sprintf("zone %d of connection tracking", number), err.Error())
	}
}

// agreeLearning sets how a bridge's action normal learns and forwards.
func (c *Client) agreeLearning(bridge string, want Learning) {
	present, err := c.setup.Tables.Learning(bridge)
	if err != nil || present == want { // reconcileBridges has logged why the bridge is missing
		return
	}
	if err := c.setup.Tables.SetLearning(bridge, want); err != nil {
		c.warn("bridge "+bridge, err.Error())
	}
}

// agreeTables sets the limits of a bridge's flow tables to those of the database. As with Open
// vSwitch, a table without a row has no limit.
func (c *Client) agreeTables(bridge string, want map[int]tableSettings) {
	list, err := c.setup.Tables.Tables(bridge)
	if err != nil {
		return // the bridge could not be added; reconcileBridges has logged it
	}
	present := map[int]tableSettings{}
	for _, t := range list {
		present[t.Table] = tableSettings{limit: t.Limit, evict: t.Evict}
	}
	numbers := maps.Clone(want)
	maps.Copy(numbers, present)
	for _, n := range slices.Sorted(maps.Keys(numbers)) {
		if want[n] == present[n] {
			continue
		}
		words := []string{"limit:" + strconv.Itoa(want[n].limit), "noevict"}
		if want[n].evict {
			words[1] = "evict"
		}
		if err := c.setup.Tables.ModifyTable(bridge, api.ModTable{Table: n, Settings: words}); err != nil {
			c.warn(fmt.Sprintf("bridge %s, table %d", bridge, n), err.Error())
		}
	}
}
