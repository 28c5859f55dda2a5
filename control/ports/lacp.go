// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weft/api"
	"weft/control/lacp"
	"weft/control/loop"
	"weft/control/usererr"
)

// This file runs LACP on the members of bonds with lacp=active or lacp=passive. Package lacp has the
// protocol. A goroutine of its own sends and receives, because a change of the configuration may
// take longer than the LACP partner waits.

// lacpOptions are the options of a bond for LACP, with the names and defaults of
// ovs-vswitchd.conf.db(5).
var lacpOptions = optionTable{
	"lacp":                 {value: "off", check: oneOf("active", "passive", "off")},
	"lacp_time":            {value: "slow", check: oneOf("fast", "slow")},
	"lacp_fallback_ab":     {value: "off", check: oneOf("on", "off")},
	"lacp_system_id":       {check: systemID},
	"lacp_system_priority": {value: "65535", check: numberIn(1, 65535)},
}

// lacpMemberOptions are the options of a bond's member for LACP.
var lacpMemberOptions = optionTable{
	"lacp_port_id":         {check: numberIn(1, 65535)},
	"lacp_port_priority":   {check: numberIn(1, 65535)},
	"lacp_aggregation_key": {check: numberIn(1, 65535)},
}

func systemID(value string) string {
	if mac, err := net.ParseMAC(value); err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return "a unicast MAC address"
	}
	return ""
}

// speaksLACP reports whether a bond with these options runs LACP.
func speaksLACP(values map[string]string) bool {
	return values["lacp"] != "off" && values["lacp"] != ""
}

// checkLACP refuses LACP options that need another option of the bond or the member.
func checkLACP(values map[string]string) error {
	if values["bond_mode"] == balanceTCP && !speaksLACP(values) {
		return usererr.Errorf("bond_mode=%s: expected lacp=active or lacp=passive as well, because the switch at the other end must know the bond", balanceTCP)
	}
	for name := range lacpMemberOptions {
		if values[name] != "" && values[bondOption] == "" {
			return usererr.Errorf("%s=%s: expected %s= as well", name, values[name], bondOption)
		}
	}
	return nil
}

const (
	// lacpInterval is the time between two reads of the members' sockets.
	lacpInterval = 50 * time.Millisecond
	// maxSlowFrames is the largest number of frames that are read from a device in each lacpInterval.
	// Package lacp has lower limits for the LACPDUs among them.
	maxSlowFrames = 32
)

// slowMember has the data about a bond's member that LACP needs.
type slowMember struct {
	lacp.Link
	name  string
	index int // interface index of the device; 0: the port has no device now
}

// aggregation is the LACP state of one bond.
type aggregation struct {
	lacp.Aggregator
	bond    string
	config  lacp.Config
	members []slowMember
	links   map[uint32]*openLink // by port number of the member
	refused map[uint32]string    // last logged reason why a member has no link
}

// openLink is a member's open socket for LACP.
type openLink struct {
	slowLink
	index   int
	problem string // error of the last PDU; "": the PDU was sent
}

// aggregations has the LACP state of all bonds. Its lock mu is taken after the configuration lock.
type aggregations struct {
	log  *slog.Logger
	open func(index int) (slowLink, error)
	now  func() time.Time
	wake chan struct{}

	mu    sync.Mutex
	bonds map[uint32]*aggregation // by port number of the bond
	buf   [slowHeader + lacp.PDULen]byte
}

func newAggregations(log *slog.Logger) *aggregations {
	return &aggregations{log: log, open: openSlow, now: time.Now, wake: make(chan struct{}, 1), bonds: map[uint32]*aggregation{}}
}

// run sends and receives PDUs until ctx ends. It sleeps while no bond has LACP.
func (set *aggregations) run(ctx context.Context) {
	for {
		if !set.tick() {
			select {
			case <-ctx.Done():
				set.retain(nil)
				return
			case <-set.wake:
			}
		}
		if !loop.Sleep(ctx, lacpInterval) {
			set.retain(nil)
			return
		}
	}
}

// tick reads the frames that have arrived, and sends the LACPDUs that are due. It reports whether a
// bond has LACP.
func (set *aggregations) tick() bool {
	set.mu.Lock()
	defer set.mu.Unlock()
	now := set.now()
	for _, a := range set.bonds {
		for _, m := range a.members {
			l := a.links[m.Number]
			if l == nil {
				continue
			}
			for range maxSlowFrames {
				payload := l.receive(set.buf[:])
				if payload == nil {
					break
				}
				a.Receive(now, m.Number, payload)
			}
		}
		set.step(a, now)
	}
	return len(set.bonds) > 0
}

// step asks package lacp for the LACPDUs that are due, and sends them. The caller holds set.mu.
func (set *aggregations) step(a *aggregation, now time.Time) {
	links := make([]lacp.Link, 0, len(a.members))
	for _, m := range a.members {
		link := m.Link
		link.Up = link.Up && a.links[m.Number] != nil
		links = append(links, link)
	}
	for _, f := range a.Step(now, a.config, links) {
		l, problem := a.links[f.Number], ""
		if err := l.send(&f.PDU); err != nil {
			problem = err.Error()
		}
		if problem != "" && problem != l.problem {
			set.log.Warn("a LACPDU is not sent", "bond", a.bond, "member", f.Number, "error", problem)
		}
		l.problem = problem
	}
}

// follow sets the present settings and members of a bond. If config.System is 0, the bond's system
// ID is the MAC address of a member.
func (set *aggregations) follow(number uint32, bond string, config lacp.Config, members []slowMember) {
	set.mu.Lock()
	defer set.mu.Unlock()
	a := set.bonds[number]
	if a == nil {
		a = &aggregation{bond: bond, links: map[uint32]*openLink{}, refused: map[uint32]string{}}
		set.bonds[number] = a
		loop.Notify(set.wake)
	}
	a.members = members
	set.openLinks(a)
	if config.System == [6]byte{} {
		config.System = a.system()
	}
	a.config = config
	set.step(a, set.now())
}

// openLinks opens a socket for each member that is up. It closes the socket of a member that has
// left the bond, or whose device is gone or was replaced. The caller holds set.mu.
func (set *aggregations) openLinks(a *aggregation) {
	has := map[uint32]int{}
	for _, m := range a.members {
		if m.index != 0 {
			has[m.Number] = m.index
		}
	}
	maps.DeleteFunc(a.links, func(number uint32, l *openLink) bool {
		stays := has[number] == l.index
		if !stays {
			l.close()
		}
		return !stays
	})
	for _, m := range a.members {
		if a.links[m.Number] != nil || m.index == 0 || !m.Up {
			continue
		}
		link, err := set.open(m.index)
		if err != nil {
			if a.refused[m.Number] != err.Error() { // the next attempt follows after livenessInterval
				set.log.Warn("a member of a bond has no LACP", "bond", a.bond, "member", m.name, "error", err)
			}
			a.refused[m.Number] = err.Error()
			continue
		}
		delete(a.refused, m.Number)
		a.links[m.Number] = &openLink{slowLink: link, index: m.index}
	}
}

// system returns the system ID, which identifies this switch to the partner: a MAC address of a member.
func (a *aggregation) system() (mac [6]byte) {
	for _, number := range slices.Sorted(maps.Keys(a.links)) {
		own := a.links[number].mac()
		if own == a.config.System {
			return own // keep it while the member is there: a new system ID would interrupt the aggregation
		}
		if mac == [6]byte{} {
			mac = own
		}
	}
	if mac == [6]byte{} {
		return a.config.System
	}
	return mac
}

// retain ends LACP and closes the sockets on all bonds that are not in the set "kept".
func (set *aggregations) retain(kept map[uint32]bool) {
	set.mu.Lock()
	defer set.mu.Unlock()
	maps.DeleteFunc(set.bonds, func(number uint32, a *aggregation) bool {
		if !kept[number] {
			for _, l := range a.links {
				l.close()
			}
		}
		return !kept[number]
	})
}

// state returns which members of a bond may carry frames, and whether the bond has negotiated with a
// partner.
func (set *aggregations) state(number uint32) (usable map[uint32]bool, negotiated bool) {
	set.mu.Lock()
	defer set.mu.Unlock()
	a := set.bonds[number]
	if a == nil {
		return nil, false
	}
	usable = map[uint32]bool{}
	for _, m := range a.members {
		usable[m.Number] = a.MayEnable(m.Number)
	}
	return usable, a.Negotiated()
}

// describe adds the LACP state of a bond to its description. name returns the name of a port.
func (set *aggregations) describe(number uint32, b *api.Bond, name func(number uint32) string) {
	set.mu.Lock()
	defer set.mu.Unlock()
	a := set.bonds[number]
	if a == nil {
		return
	}
	b.LACP = &api.LACP{Active: a.config.Active, Fast: a.config.Fast, Fallback: a.config.Fallback, Negotiated: a.Negotiated(),
		System: formatMAC(a.config.System), SystemPriority: a.config.SystemPriority}
	for _, m := range a.Show() {
		i := slices.IndexFunc(b.Members, func(o api.BondMember) bool { return o.Name == name(m.Number) })
		if i < 0 {
			continue
		}
		b.Members[i].LACP = &api.LACPMember{Status: m.Status.String(), Attached: m.Attached, Actor: describeEnd(&m.Actor), Partner: describeEnd(&m.Partner),
			Sent: m.Stats.Sent, Received: m.Stats.Received, Bad: m.Stats.Bad, Markers: m.Stats.Markers, Excess: m.Stats.Excess, Deferred: m.Stats.Deferred,
			Expired: m.Stats.Expired, Defaulted: m.Stats.Defaulted, Carrier: m.Stats.Carrier}
	}
}

func describeEnd(i *lacp.Info) api.LACPEnd {
	return api.LACPEnd{System: formatMAC(i.System), SystemPriority: i.SystemPriority, Key: i.Key, PortPriority: i.PortPriority, Port: i.Port,
		State: slices.Concat([]string{}, i.State.Words())}
}

// lacpConfig returns the LACP settings of a bond. The option tables have checked the values.
func lacpConfig(values map[string]string) lacp.Config {
	c := lacp.Config{Active: values["lacp"] == "active", Fast: values["lacp_time"] == "fast",
		SystemPriority: uint16Of(values["lacp_system_priority"], 65535), Fallback: values["lacp_fallback_ab"] == "on"}
	if mac, err := net.ParseMAC(values["lacp_system_id"]); err == nil {
		copy(c.System[:], mac)
	}
	return c
}

// lacpLink returns the data that LACP needs about member m of bond p. "up" is true if the member is
// up, whatever LACP says.
func lacpLink(p, m *switchPort, up bool) slowMember {
	s := slowMember{name: m.saved.Name, Link: lacp.Link{Number: m.saved.Number, Up: up, Port: uint16Of(m.values["lacp_port_id"], uint16(m.saved.Number)),
		Priority: uint16Of(m.values["lacp_port_priority"], 65535), Key: uint16Of(m.values["lacp_aggregation_key"], uint16(p.saved.Number))}}
	if device, ok := m.driver.(interface{ linkIndex() int }); ok {
		s.index = device.linkIndex()
	}
	return s
}

func uint16Of(text string, missing uint16) uint16 {
	if n, err := strconv.ParseUint(text, 10, 16); err == nil {
		return uint16(n)
	}
	return missing
}

// formatMAC returns a MAC address as Open vSwitch prints it.
func formatMAC(mac [6]byte) string { return strings.ToLower(net.HardwareAddr(mac[:]).String()) }

// lacpTrouble returns the reason why LACP lets no member of a bond carry frames. It returns "" if
// the bond has no LACP.
func (set *aggregations) lacpTrouble(number uint32) string {
	set.mu.Lock()
	defer set.mu.Unlock()
	a := set.bonds[number]
	if a == nil {
		return ""
	}
	for _, m := range a.members {
		if m.index == 0 && m.Up {
			return fmt.Sprintf("member %s has no LACP: expected type=device", m.name)
		}
	}
	return "no member has a partner: the switch at the other end sends no LACP, or another than the members' together"
}
