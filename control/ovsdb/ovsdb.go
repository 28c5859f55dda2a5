// SPDX-License-Identifier: Apache-2.0

// Package ovsdb lets an ovsdb-server configure the switch, as ovs-vswitchd does: it holds the database's
// lock, monitors the tables, changes the switch until it agrees with the rows, and writes the switch's
// state back.
//
//	ovsdb.go         the client: connects, holds the lock, decides when to work
//	session.go       JSON-RPC with the server
//	value.go, rows.go   values and rows, and their changes
//	model.go         turns rows into the options that weft add-port takes
//	reconcile.go     adds, changes and deletes the switch's bridges and ports
//	mirrors.go, exporters.go, bonds.go   mirrors and exporters of bridges, ports of several interfaces
//	settings.go      zones of connection tracking, and limits of flow tables
//	devices.go       the kernel's devices and routes
//	writeback.go     rows that the switch writes
//	capabilities.go  what the switch tells about itself
//	check.go         finds rows that the switch could not put into effect
//
// All work happens in the goroutine of Run, except that a goroutine of each session reads from the
// server. The package holds no lock while it calls the switch or the server.
package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"weft/control/limits"
	"weft/control/loop"
)

const (
	database = "Open_vSwitch"
	lockName = "ovs_vswitchd" // the lock of ovs-vswitchd, so that only one daemon follows a database
	// The pause between two attempts to connect doubles from minBackoff to maxBackoff.
	minBackoff = 250 * time.Millisecond
	maxBackoff = 8 * time.Second
	// statusInterval is the time between two write-backs of the states of ports and controllers.
	statusInterval = time.Second
	// A change of a link's state is written to the database at once, up to linkBurst times in a row.
	// Then there is at most one write in linkPause.
	linkPause = 20 * time.Millisecond
	linkBurst = 16
	// usualStats is the default of other_config:stats-update-interval, in milliseconds.
	usualStats = 5000
	// checkEvery is the number of received bytes after which the client computes again how much
	// memory its rows take.
	checkEvery = 8 << 20
)

// Setup has the dependencies of a Client.
type Setup struct {
	Target string // address of the ovsdb-server, see CheckTarget
	// Certificates returns the certificates for a target with ssl:. The client calls it for each
	// connection.
	Certificates Certificates
	Switch       Switch
	Tables       FlowTables // nil: the database does not set limits of flow tables
	Tracker      Tracker    // nil: the database does not configure zones
	// LinkChanges gets a message when a network device has changed. If it is nil, the client only checks
	// once a second.
	LinkChanges <-chan struct{}
	RunDir      string // directory of the sockets of dpdkvhostuser ports
	Version     string // version of the switch, for Bridge.datapath_version
	Log         *slog.Logger
}

// Client configures the switch from one database. The goroutine of Run owns its fields.
type Client struct {
	setup  Setup
	log    *slog.Logger
	kernel facts

	session   *session
	schema    schema
	rows      tables
	last      string // ID of the newest transaction in rows; "": none
	locked    bool
	unchecked int  // bytes of changes since the last checkRows
	changed   bool // the rows or the lock have changed since the last reconcile
	unset     bool // the settings still differ from the rows, because no engine serves yet

	failed        map[string]*failure // by name of the port
	problems      map[uuid]string     // last logged reasons, by row in Interface
	bridgeProblem map[string]string
	missingBridge map[string]bool // bridges that could not be added
	// limited has the connection tracking zones whose limits the database has set. defaultLimited is
	// true if the database has set the default limit. The client does not remove limits that others
	// have set, for example with ovs-appctl dpctl/ct-set-limits.
	limited        map[uint16]bool
	defaultLimited bool
	vlanLimit      int // last limit passed to the flow tables; 0: none
	warned         map[string]string
	model          model
	statistics     map[uuid]value // statistics last written, by row
	statsWritten   time.Time
	tooMuch        atomic.Uint64 // number of sessions that ended with errTooMuch
	routesRead     time.Time     // when the routes of the tunnels were last queried
	// uplinkAsked has the time at which the client last noticed that a tunnel's remote has no uplink.
	// The key is the name of the device to which the route leads.
	uplinkAsked map[string]time.Time
}

// New returns a client. Run starts it.
func New(s Setup) *Client {
	return &Client{setup: s, log: s.Log, kernel: Kernel{}, failed: map[string]*failure{}, limited: map[uint16]bool{}, warned: map[string]string{},
		uplinkAsked: map[string]time.Time{}}
}

// LimitRows reports the limit of the memory for the database's rows, for `weft show limits`.
func (c *Client) LimitRows(emit func(limits.Row)) {
	emit(limits.Row{Name: "ovsdb_bytes", Unit: "bytes", Holder: limits.All(), Limit: maxRowBytes, Refused: c.tooMuch.Load()})
}

// Run connects to the database and keeps the switch in agreement with it until ctx ends. Without a
// connection the switch stays as it is.
func (c *Client) Run(ctx context.Context) {
	c.logCapabilities()
	backoff := minBackoff
	for ctx.Err() == nil {
		began := time.Now()
		err := c.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > maxBackoff {
			backoff = minBackoff
		}
		if errors.Is(err, errTooMuch) {
			c.tooMuch.Add(1)
		}
		if why := err.Error(); c.warned["server"] != why {
			c.warned["server"] = why
			level := slog.LevelWarn
			if errors.Is(err, io.EOF) { // ovsdb-server has ended or restarts, which is no fault; ovs-vswitchd's level, too
				level = slog.LevelInfo
			}
			c.log.Log(ctx, level, "no connection to the database, the switch stays as it is", "database", c.setup.Target, "error", err)
		}
		loop.Sleep(ctx, backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// follow serves one connection to the database, and returns the reason why it ended.
func (c *Client) follow(ctx context.Context) (err error) {
	if c.session, err = dial(ctx, c.setup.Target, c.setup.Certificates); err != nil {
		return err
	}
	defer c.session.close()
	defer context.AfterFunc(ctx, c.session.close)()
	if err := c.begin(); err != nil {
		return err
	}
	delete(c.warned, "server")
	c.log.Info("connected to the database", "database", c.setup.Target, "schema", c.schema.Version, "locked", c.locked)
	tick := time.NewTicker(statusInterval)
	defer tick.Stop()
	links := rate.NewLimiter(rate.Every(linkPause), linkBurst)
	c.changed = true
	for {
		if err := c.work(time.Now()); err != nil {
			return err
		}
		if c.changed && c.ready() { // the write-back has found more to do
			continue
		}
		select {
		case <-c.session.arrived:
			if err := c.takeNotifications(); err != nil {
				return err
			}
		case <-tick.C:
		case <-c.setup.LinkChanges:
			_ = links.Wait(ctx) // an error ends the session too
		case <-c.session.ended:
			return c.session.reason()
		}
	}
}

// begin requests the schema, the lock and the rows.
func (c *Client) begin() error {
	c.schema = schema{}
	if err := c.session.call("get_schema", &c.schema, database); err != nil {
		return err
	}
	if err := c.askForLock(); err != nil {
		return err
	}
	return c.readRows()
}

// askForLock requests the database's lock. The server may grant it later, in a notification.
func (c *Client) askForLock() error {
	var lock struct {
		Locked bool `json:"locked"`
	}
	if err := c.session.call("lock", &lock, lockName); err != nil {
		return err
	}
	c.locked = lock.Locked
	if !c.locked {
		c.log.Warn("another process has the database's lock, the switch waits for it", "lock", lockName)
	}
	return nil
}

// readRows requests the rows, and notifications of their changes.
func (c *Client) readRows() error {
	var reply []json.RawMessage
	since := c.last
	if since == "" {
		since = "00000000-0000-0000-0000-000000000000"
	}
	if err := c.session.call("monitor_cond_since", &reply, database, "weft", c.schema.requests(), since); err != nil {
		return err
	}
	var found bool
	var updates tableUpdates
	if len(reply) != 3 {
		return errors.New("monitor_cond_since: the reply has not three parts")
	}
	if err := errors.Join(json.Unmarshal(reply[0], &found), json.Unmarshal(reply[1], &c.last), json.Unmarshal(reply[2], &updates)); err != nil {
		return fmt.Errorf("monitor_cond_since: %w", err)
	}
	if !found { // the server does not know the transaction "since", and has sent all rows
		c.rows = tables{}
	}
	c.statistics = map[uuid]value{}
	if err := c.rows.apply(&c.schema, updates); err != nil {
		return err
	}
	return c.checkRows()
}

// checkRows returns an error if the rows take too much memory. It then drops them, so that the next
// session requests all rows again.
func (c *Client) checkRows() error {
	err := c.rows.check()
	if err != nil {
		c.rows, c.last = nil, ""
	}
	return err
}

// takeNotifications applies the notifications that have arrived. Each update is a whole transaction
// of the database, so the rows are consistent after it.
func (c *Client) takeNotifications() error {
	notifications := c.session.notifications()
	for _, m := range notifications {
		switch m.Method {
		case "update3":
			var params []json.RawMessage
			var updates tableUpdates
			if err := json.Unmarshal(m.Params, &params); err != nil || len(params) != 3 {
				return errors.New("update3: expected three parameters")
			}
			if err := errors.Join(json.Unmarshal(params[1], &c.last), json.Unmarshal(params[2], &updates)); err != nil {
				return fmt.Errorf("update3: %w", err)
			}
			if err := c.rows.apply(&c.schema, updates); err != nil {
				return err
			}
			c.changed = c.changed || updates.concern()
			c.unchecked += len(m.Params)
		case "locked":
			c.log.Info("the switch has the database's lock")
			c.locked, c.changed = true, true
		case "stolen":
			c.log.Warn("another process has taken the database's lock")
			c.locked = false
		case "monitor_canceled":
			return errCanceled
		}
	}
	if c.unchecked < checkEvery {
		return nil
	}
	c.unchecked = 0
	return c.checkRows()
}

// work changes the switch until it agrees with the rows. It does so if the rows have changed, or if
// it is time to try a failed port again. It then writes the switch's state to the database.
func (c *Client) work(now time.Time) error {
	if !c.ready() {
		return nil
	}
	if c.changed || c.due(now) {
		c.changed = false
		m := wanted(c.rows, c.setup.RunDir)
		noteIgnored(c.rows, c.warn)
		c.setup.Switch.SetCertificates(c.rows.ssl())
		c.reconcile(&m, now)
		c.noteProblems(&m)
		c.model = m
		c.unset = true
	}
	if c.unset {
		w := wantedSettings(c.rows)
		c.unset = !c.agreeSettings(&w)
	}
	return c.writeBack(now)
}

// ready reports whether the client may change the switch. It needs the database's lock, and the
// database must have a row in table Open_vSwitch, as it does after ovs-vsctl init.
func (c *Client) ready() bool {
	_, root := c.rows.root()
	return c.locked && root != nil
}

// due reports whether it is time to try a failed port again, or to query the routes of tunnels
// again. A failed port is tried at once when its network device appears.
func (c *Client) due(now time.Time) (due bool) {
	if len(c.failed) > 0 {
		devices := c.kernel.devices()
		for name, f := range c.failed {
			if _, there := devices[name]; there && !f.device {
				f.tried = time.Time{}
			}
			due = due || now.Sub(f.tried) >= retryInterval
		}
	}
	return due || now.Sub(c.routesRead) >= retryInterval && c.model.hasTunnels()
}

// noteProblems logs why certain ports cannot be made from their rows. It logs again only when the
// reason changes.
func (c *Client) noteProblems(m *model) {
	problems := map[uuid]string{}
	for i := range m.ports {
		p := &m.ports[i]
		if p.problem == "" {
			continue
		}
		problems[p.id] = p.problem
		if c.problems[p.id] != p.problem {
			c.log.Warn("a row cannot be done", "interface", p.name, "error", p.problem)
		}
	}
	c.problems = problems
}

// noteIgnored calls the function warn for settings in the rows that have no effect in this switch,
// or not the requested one.
func noteIgnored(t tables, warn func(subject, reason string)) {
	for _, r := range t["QoS"] {
		if kind := r.text("type"); kind == "linux-noop" {
			continue // asks for nothing; OVN writes such rows
		} else if kind != "linux-htb" {
			warn("qos "+kind, "there is no such type, the row has no effect; expected linux-htb")
		} else if r.get("other_config", "max-rate") != "" {
			warn("qos max-rate", "a port has no rate of its own, other_config:max-rate has no effect; expected max-rate of queues")
		}
	}
	for _, r := range t["Mirror"] {
		if r.text("filter") != "" {
			warn("mirror "+r.text("name")+" filter", "the column has no effect, the mirror copies all frames that it selects")
		}
	}
	for _, r := range t["Bridge"] {
		if len(r.refs("netflow")) > 0 {
			warn("bridge "+r.text("name")+" netflow", "there is no netflow, the column has no effect; expected ipfix or sflow")
		}
		for _, column := range []string{"stp_enable", "rstp_enable", "mcast_snooping_enable"} {
			if r.truth(column) {
				warn("bridge "+r.text("name")+" "+column, "the column has no effect")
			}
		}
		wantedLearning(r, func(key, reason string) { warn("bridge "+r.text("name")+" "+key, reason) })
	}
}
