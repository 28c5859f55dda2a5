// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft/central/wire"
)

// Limits of security groups, the same as in package store.
const (
	maxPortGroups = 8
	maxGroupRules = 128
	maxRulePorts  = 16
)

// Group is a security group in files and output. Each rule is one text, see parseRule. A rule names
// other groups by name; in files and words also by id.
type Group struct {
	Name  string   `toml:"name" json:"name"`
	ID    string   `toml:"id,omitempty" json:"id,omitempty"`
	Rules []string `toml:"rules,omitempty" json:"rules"`
}

// ruleSeparator separates the rules in the value of the word rules=.
const ruleSeparator = ";"

func (g *Group) words() []word {
	if len(g.Rules) == 0 {
		return nil
	}
	return []word{{"rules", strings.Join(g.Rules, ruleSeparator+" ")}}
}

// Text returns the group as words KEY=VALUE.
func (g *Group) Text() string { return text(g.words()) }

// GroupOf converts a protobuf message to a Group, with names of groups in place of ids.
func (f *Fleet) GroupOf(g *wire.Group) Group {
	group := Group{Name: g.GetName(), ID: g.GetId(), Rules: []string{}}
	for _, r := range g.GetRules() {
		group.Rules = append(group.Rules, r.Text(f.Groups.name))
	}
	return group
}

const ruleForm = `expected in|out PROTOCOL [PORTS|TYPE] [from|to PREFIX|group NAME], as in "in tcp 80,8000-8099 from 10.0.0.0/8"`

// parseRule parses the text of a rule. find returns the id of a group.
func parseRule(text string, find func(nameOrID string) (id string, err error)) (*wire.GroupRule, error) {
	words := strings.Fields(text)
	fail := func(format string, args ...any) error {
		return errorf("rule %s: "+format, append([]any{quoted(text)}, args...)...)
	}
	if len(words) < 2 {
		return nil, fail("%s", ruleForm)
	}
	r := &wire.GroupRule{Out: words[0] == "out"}
	if words[0] != "in" && words[0] != "out" {
		return nil, fail("%s: expected in or out", quoted(words[0]))
	}
	var ok bool
	if r.Protocol, ok = wire.ParseProtocol(words[1]); !ok {
		return nil, fail("%s: expected any, tcp, udp, sctp, icmp, icmp6 or a number from 1 to 255", quoted(words[1]))
	}
	words = words[2:]
	if len(words) > 0 && words[0] != "from" && words[0] != "to" {
		if err := parseDetail(r, words[0]); err != nil {
			return nil, fail("%v", err)
		}
		words = words[1:]
	}
	end := "from"
	if r.Out {
		end = "to"
	}
	switch {
	case len(words) == 0:
		return r, nil
	case words[0] != end:
		return nil, fail("%s: expected %s", quoted(words[0]), end)
	case len(words) == 3 && words[1] == "group":
		id, err := find(words[2])
		if err != nil {
			return nil, fail("%v", err)
		}
		r.Group = id
		return r, nil
	case len(words) == 2:
		p, err := parsePrefix(words[1])
		if err != nil {
			return nil, fail("%v", err)
		}
		r.Prefix, r.PrefixBits = p.Addr().AsSlice(), uint32(p.Bits())
		return r, nil
	}
	return nil, fail("%s", ruleForm)
}

func parseDetail(r *wire.GroupRule, text string) error {
	if wire.HasICMPType(r.Protocol) {
		n, err := strconv.ParseUint(text, 10, 8)
		if err != nil {
			return errorf("%s: expected an ICMP type from 0 to 255", quoted(text))
		}
		icmp := uint32(n)
		r.IcmpType = &icmp
		return nil
	}
	if !wire.HasPorts(r.Protocol) {
		return errorf("%s: ports need the protocol tcp, udp or sctp, a type needs icmp or icmp6", quoted(text))
	}
	for word := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(word, "-")
		if !isRange {
			last = first
		}
		lo, err := strconv.ParseUint(first, 10, 16)
		hi, errLast := strconv.ParseUint(last, 10, 16)
		if err != nil || errLast != nil || lo > hi {
			return errorf("%s: expected a port from 0 to 65535, or a range as in 8000-8099", quoted(word))
		}
		r.Ports = append(r.Ports, &wire.PortRange{First: uint32(lo), Last: uint32(hi)})
	}
	if len(r.Ports) > maxRulePorts {
		return errorf("%d ranges of ports; expected at most %d", len(r.Ports), maxRulePorts)
	}
	return nil
}

// parsePrefix parses an IP address or a prefix. The bits after the prefix must be zeros.
func parsePrefix(text string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || p.Addr().Is4In6():
		return p, errorf("%s: expected a prefix as in 10.0.0.0/8, or group NAME", quoted(text))
	case p != p.Masked():
		return p, errorf("%s: has bits of a host; did you mean %s?", quoted(text), p.Masked())
	}
	return p, nil
}

// splitRules splits the VALUE of the word rules= into the texts of the rules.
func splitRules(text string) (list []string) {
	for rule := range strings.SplitSeq(text, ruleSeparator) {
		if rule = strings.TrimSpace(rule); rule != "" {
			list = append(list, rule)
		}
	}
	return list
}

// rules parses the rules of group g.
func (f *Fleet) rules(g *wire.Group, texts []string) (list []*wire.GroupRule, err error) {
	for _, text := range texts {
		r, err := parseRule(text, func(word string) (string, error) {
			if word == g.Name || word == g.Id {
				return g.Id, nil
			}
			other, err := f.Groups.Find(word)
			return other.GetId(), err
		})
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, checkRuleCount(len(list))
}

func checkRuleCount(n int) error {
	if n > maxGroupRules {
		return errorf("%d rules; expected at most %d in a group", n, maxGroupRules)
	}
	return nil
}

// SetGroup applies words KEY=VALUE to a group. The word id= is allowed only for a group that is
// being created.
func (f *Fleet) SetGroup(g *wire.Group, created bool, words []string) error {
	index := func(r *wire.GroupRule) int {
		return slices.IndexFunc(g.Rules, func(o *wire.GroupRule) bool { return equivalent(o, r) })
	}
	return apply(words, append(naming(&g.Id, &g.Name, created),
		setting{"rules", func(v string) (err error) { g.Rules, err = f.rules(g, splitRules(v)); return err }},
		setting{"allow", func(v string) error {
			more, err := f.rules(g, splitRules(v))
			if err != nil {
				return err
			}
			for _, r := range more {
				if index(r) < 0 {
					g.Rules = append(g.Rules, r)
				}
			}
			return checkRuleCount(len(g.Rules))
		}},
		setting{"remove", func(v string) error {
			gone, err := f.rules(g, splitRules(v))
			if err != nil {
				return err
			}
			for _, r := range gone {
				i := index(r)
				if i < 0 {
					return errorf("remove=: group %s has no rule %s; weft secgroup show %s prints its rules", g.Name, quoted(r.Text(f.Groups.name)), g.Name)
				}
				g.Rules = slices.Delete(slices.Clone(g.Rules), i, i+1)
			}
			return nil
		}},
	))
}

// groupIDs converts names or ids of groups to sorted ids.
func (f *Fleet) groupIDs(names []string) (ids []string, err error) {
	if len(names) > maxPortGroups {
		return nil, errorf("groups=: %d of them; expected at most %d", len(names), maxPortGroups)
	}
	for _, name := range names {
		g, err := f.Groups.Find(name)
		if err != nil {
			return nil, errorf("groups=: %v", err)
		}
		if slices.Contains(ids, g.GetId()) {
			return nil, errorf("groups=: %s is there twice; give it once", quoted(name))
		}
		ids = append(ids, g.GetId())
	}
	slices.Sort(ids)
	return ids, nil
}

// groupNames converts ids of groups to sorted names.
func (f *Fleet) groupNames(ids []string) (names []string) {
	for _, id := range ids {
		names = append(names, f.Groups.name(id))
	}
	slices.Sort(names)
	return names
}

func (g *Group) check() error {
	for _, text := range g.Rules {
		if _, err := parseRule(text, func(word string) (string, error) { return word, CheckName("group", word) }); err != nil {
			return err
		}
	}
	return checkRuleCount(len(g.Rules))
}

// mergeGroups computes the changes of groups, as merge does for other kinds. A rule may name another
// group of the same file. So a first call of merge gives all groups their ids, and a second one
// converts the rules.
func (f *Fleet) mergeGroups(file *File, prune bool) (*merged[*wire.Group], error) {
	naming := func(g *Group) (string, string) { return g.ID, g.Name }
	named, err := merge(f.Groups, file.Groups, prune, naming,
		func(g *Group, id string) (*wire.Group, error) { return &wire.Group{Id: id, Name: g.Name}, nil })
	if err != nil {
		return nil, err
	}
	entries := slices.Clone(file.Groups)
	for i := range entries {
		entries[i].ID = named.result[i].GetId()
	}
	after := &Fleet{Groups: kindOf("group", named.result)}
	return merge(f.Groups, entries, prune, naming, func(g *Group, id string) (*wire.Group, error) {
		w := &wire.Group{Id: id, Name: g.Name}
		rules, err := after.rules(w, g.Rules)
		if err != nil {
			return nil, errorf("group %s: %v", g.Name, err)
		}
		w.Rules = rules
		return w, nil
	})
}
