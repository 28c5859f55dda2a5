package control

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weft/api"
	"weft/conntrack"
	"weft/control/access"
	"weft/control/observe"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
)

// The connection table lies in memory shared with the engine: control reads it,
// writes its settings, and has worker 0 end connections.

// dumpChunk is the number of records read before others get a chance at
// Daemon.mu.
const dumpChunk = 8192

// eachConnection calls visit with all connections that filter chooses, with Daemon.mu
// held, and pause once in a while without, until that returns false.
func (d *Daemon) eachConnection(filter *conntrack.Filter, visit func(*conntrack.Entry), pause func() bool) {
	for from, more := uint32(0), true; more; from += dumpChunk {
		d.mu.RLock()
		if d.workers == nil {
			d.mu.RUnlock()
			return
		}
		more = d.workers.Connections().EachIn(from, from+dumpChunk, clock.Monotonic(), func(e *conntrack.Entry) bool {
			if filter.Match(e) {
				visit(e)
			}
			return true
		})
		d.mu.RUnlock()
		more = pause() && more
	}
}

// connections is the table, for settings. Caller holds mu.
func (d *Daemon) connections() (*conntrack.Memory, error) {
	if d.workers == nil {
		return nil, workers.ErrGone
	}
	return d.workers.Connections(), nil
}

// flushConnections ends the connections that filter chooses, and returns how many
// once they have ended. workers.ErrGone: none did if the engine had died before, and
// some may have if it died meanwhile.
func (d *Daemon) flushConnections(filter *conntrack.Filter) (n int, err error) {
	var refs []conntrack.Ref
	d.eachConnection(filter, func(e *conntrack.Entry) { refs = append(refs, e.Ref) }, func() bool { return true })
	d.change.Lock() // settle must not outlive the workers
	defer d.change.Unlock()
	d.mu.RLock()
	w := d.workers
	d.mu.RUnlock()
	if w == nil || w.Gone() {
		return 0, workers.ErrGone
	}
	for some := range slices.Chunk(refs, datapath.MaxEnds) {
		if !w.Push(0, datapath.AppendEndConnections(nil, some)) {
			return 0, workers.ErrGone
		}
	}
	if err := w.WaitApplied(); err != nil {
		return 0, err
	}
	return len(refs), nil
}

// collectRecircs forgets the recirc_ids that no megaflow needs. Caller holds mu.
func (d *Daemon) collectRecircs(list []*megaflow) {
	needed := map[uint32]bool{}
	for _, m := range list {
		needed[m.key.Recirc()] = true
		for i := range m.actions {
			if m.actions[i].Op == flowtable.OpRecirc {
				needed[m.actions[i].U32] = true
			}
		}
	}
	d.recircs.Collect(func(id uint32) bool { return needed[id] })
}

func (d *Daemon) conntrackRoutes(mux *access.Mux, route func(pattern string, answer func(r *http.Request) (any, error))) {
	mux.HandleFunc("GET /v1/conntrack", d.dumpConnections)
	route("DELETE /v1/conntrack", func(r *http.Request) (any, error) {
		filter, err := conntrack.ParseFilter(r.URL.Query()["arg"])
		if err != nil {
			return nil, asInput(err)
		}
		n, err := d.flushConnections(&filter)
		if err != nil {
			return nil, err
		}
		return api.ConnectionsChanged{Connections: n}, nil
	})
	route("GET /v1/conntrack/settings", func(*http.Request) (any, error) { return d.conntrackSettings() })
	route("POST /v1/conntrack/settings", func(r *http.Request) (any, error) {
		var c api.ChangeConntrack
		if err := body(r, &c); err != nil {
			return nil, err
		}
		return struct{}{}, d.changeConntrack(&c)
	})
}

// pagerPatience is how long a client may not read on in a dump of connections, which
// holds neither locks nor memory meanwhile: a person may be reading.
const pagerPatience = 5 * time.Minute

// dumpConnections answers with a line a connection as ovs-dpctl dump-conntrack
// prints it, or a line of JSON.
func (d *Daemon) dumpConnections(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	filter, err := conntrack.ParseFilter(q["arg"])
	if err != nil {
		d.reply(w, nil, asInput(err))
		return
	}
	options := conntrack.FormatOptions{More: q.Get("more") == "true", Statistics: q.Get("statistics") == "true"}
	asJSON := q.Get("json") == "true"
	var line, lines []byte
	control := http.NewResponseController(w)
	d.eachConnection(&filter, func(e *conntrack.Entry) {
		line = e.AppendTo(line[:0], options)
		if asJSON {
			line, _ = json.Marshal(observe.Connection(e, string(line)))
		}
		lines = append(append(lines, line...), '\n')
	}, func() bool {
		_ = control.SetWriteDeadline(time.Now().Add(pagerPatience)) // only a test has none
		_, err := w.Write(lines)
		lines = lines[:0]
		return err == nil
	})
}

func timeoutsJSON(t *conntrack.Timeouts) map[string]uint32 {
	m := map[string]uint32{}
	for c, v := range t {
		m[conntrack.Class(c).String()] = v
	}
	return m
}

func (d *Daemon) conntrackSettings() (api.Conntrack, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	m, err := d.connections()
	if err != nil {
		return api.Conntrack{}, err
	}
	base := m.Policy(0)
	counts := m.Counters()
	s := api.Conntrack{
		Connections: m.Count(), MaxConnections: m.Limit(), DefaultLimit: m.DefaultZoneLimit(), SequenceChecks: !m.Liberal(),
		Timeouts: timeoutsJSON(&base), Zones: []api.Zone{},
		Created: counts.Created, Expired: counts.Expired, Evicted: counts.Evicted,
		RefusedLimit: counts.RefusedLimit, RefusedNAT: counts.RefusedNAT,
	}
	for n := range conntrack.Zones {
		limit, set := m.ZoneLimit(uint16(n))
		policy, count := m.ZonePolicy(uint16(n)), m.ZoneCount(uint16(n))
		if !set && policy == 0 && count == 0 {
			continue
		}
		z := api.Zone{Zone: uint16(n), Connections: count}
		if set {
			z.Limit = &limit
		}
		if policy != 0 {
			t := m.Policy(policy)
			z.Timeouts = timeoutsJSON(&t)
		}
		s.Zones = append(s.Zones, z)
	}
	return s, nil
}

func (d *Daemon) changeConntrack(c *api.ChangeConntrack) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, err := d.connections()
	if err != nil {
		return err
	}
	// First all that can be refused.
	if c.MaxConnections != nil && int(*c.MaxConnections) > m.Capacity() {
		return inputf("maxconns %d: expected at most %d, the size of the table", *c.MaxConnections, m.Capacity())
	}
	if err := setTimeouts(m, c); err != nil {
		return err
	}
	if c.MaxConnections != nil {
		m.SetLimit(*c.MaxConnections)
	}
	if c.SequenceChecks != nil {
		m.SetLiberal(!*c.SequenceChecks)
	}
	if c.DefaultLimit != nil {
		m.SetDefaultZoneLimit(*c.DefaultLimit)
	}
	for _, l := range c.Limits {
		m.SetZoneLimit(l.Zone, l.Limit)
	}
	for _, zone := range c.ClearLimits {
		m.ClearZoneLimit(zone)
	}
	return nil
}

// setTimeouts changes the timeouts of a zone, or of all that have none of their
// own.
func setTimeouts(m *conntrack.Memory, c *api.ChangeConntrack) error {
	if len(c.Timeouts) == 0 {
		if c.TimeoutZone != nil && c.ClearTimeouts {
			m.SetZonePolicy(*c.TimeoutZone, 0)
		} else if c.ClearTimeouts {
			m.SetPolicy(0, &conntrack.DefaultTimeouts)
		}
		return nil
	}
	policy := uint8(0)
	if c.TimeoutZone != nil {
		policy = m.ZonePolicy(*c.TimeoutZone)
	}
	t := m.Policy(policy)
	for _, name := range slices.Sorted(maps.Keys(c.Timeouts)) {
		class, ok := conntrack.ParseClass(name)
		if !ok {
			return inputf("timeout %s: expected one of %s", name, conntrack.ClassNames())
		}
		if c.Timeouts[name] == 0 || c.Timeouts[name] > conntrack.MaxTimeout {
			return inputf("timeout %s=%d: expected seconds from 1 to %d", name, c.Timeouts[name], conntrack.MaxTimeout)
		}
		t[class] = c.Timeouts[name]
	}
	if c.TimeoutZone == nil {
		m.SetPolicy(0, &t)
		return nil
	}
	policy, ok := policyFor(m, *c.TimeoutZone, &t)
	if !ok {
		return inputf("zone %d: expected at most %d different sets of timeouts", *c.TimeoutZone, conntrack.MaxPolicies-1)
	}
	m.SetPolicy(policy, &t)
	m.SetZonePolicy(*c.TimeoutZone, policy)
	return nil
}

// policyFor finds a policy for a zone with timeouts t: one that has them, the
// zone's own if no other zone has that, or a free one.
func policyFor(m *conntrack.Memory, zone uint16, t *conntrack.Timeouts) (uint8, bool) {
	var users [conntrack.MaxPolicies]int
	for n := range conntrack.Zones {
		users[m.ZonePolicy(uint16(n))]++
	}
	for i := 1; i < conntrack.MaxPolicies; i++ {
		if users[i] > 0 && m.Policy(uint8(i)) == *t {
			return uint8(i), true
		}
	}
	if own := m.ZonePolicy(zone); own != 0 && users[own] == 1 {
		return own, true
	}
	for i := 1; i < conntrack.MaxPolicies; i++ {
		if users[i] == 0 {
			return uint8(i), true
		}
	}
	return 0, false
}

var (
	metricConnections        = describe("connections", "Connections that are tracked.")
	metricConnectionsCreated = describe("connections_created_total", "Connections that were committed.")
	metricConnectionsEnded   = describe("connections_ended_total", "Connections that ended, by what ended them.", "by")
	metricConnectionsRefused = describe("connections_refused_total", "Connections that could not be committed, by what was missing.", "missing")
	metricConnectionsLost    = describe("connection_events_lost_total", "Events of connections that a monitor asked for and for which there was no room.")
)

// collectConnections counts connections. Caller holds mu.
func (d *Daemon) collectConnections(out chan<- prometheus.Metric) {
	m, err := d.connections()
	if err != nil {
		return
	}
	c := m.Counters()
	out <- prometheus.MustNewConstMetric(metricConnections, prometheus.GaugeValue, float64(m.Count()))
	counter(out, metricConnectionsCreated, float64(c.Created))
	counter(out, metricConnectionsEnded, float64(c.Expired), "timeout")
	counter(out, metricConnectionsEnded, float64(c.Evicted), "eviction")
	counter(out, metricConnectionsEnded, float64(c.Flushed), "flush")
	counter(out, metricConnectionsEnded, float64(c.Replaced), "successor")
	counter(out, metricConnectionsRefused, float64(c.RefusedLimit), "room")
	counter(out, metricConnectionsRefused, float64(c.RefusedNAT), "translation")
	counter(out, metricConnectionsLost, float64(m.EventsLost()))
}
