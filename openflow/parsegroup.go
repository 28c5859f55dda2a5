// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

func init() {
	addAction(ActGroup, actionRow{words: map[string]actionParse{"group": (*actionParser).group}, rank: rankGroup,
		format: func(a *Action, _ Names) string { return "group:" + a.Value.decimal() }, encode: (*actionEncoder).group,
		nicira: map[uint16]niciraRow{nxGroup: {6, func(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
			return Action{Kind: ActGroup, Value: Value64(uint64(be.Uint32(b[2:])))}, nil
		}}}})
}

// ParseGroupMod parses a group in the syntax of ovs-ofctl's add-group (GroupAdd),
// mod-group (GroupModify, GroupPut) and del-groups (GroupDelete). Errors are
// *ParseError.
func ParseGroupMod(text string, command GroupCommand, names Names) (GroupMod, error) {
	p := groupParser{names: names, mod: GroupMod{Command: command, Group: Group{ID: GroupAny}}}
	head, buckets, found := strings.Cut(text, "bucket=")
	if err := p.head(head); err != nil {
		return GroupMod{}, err
	}
	if command == GroupDelete {
		if found {
			return GroupMod{}, wrong("bucket", "only a group's number here")
		}
		return p.mod, nil
	}
	switch {
	case !p.hasID || p.mod.Group.ID == GroupAny:
		return GroupMod{}, wrong(text, "group_id=NUMBER")
	case !p.hasType:
		return GroupMod{}, wrong(text, "type=all, select, indirect or ff")
	}
	for found {
		var bucket string
		bucket, buckets, found = strings.Cut(buckets, "bucket=")
		if err := p.bucket(bucket); err != nil {
			return GroupMod{}, err
		}
	}
	p.mod.NoteTLVs(tlvsOf(names))
	return p.mod, p.mod.Group.check()
}

// ParseGroupMods parses a file of groups, one per line; # begins a comment. A line may
// begin with add, modify, add_or_mod or delete. Parsing stops at the first error, which
// names the line.
func ParseGroupMods(r io.Reader, command GroupCommand, names Names) ([]GroupMod, error) {
	words := map[string]GroupCommand{"add": GroupAdd, "modify": GroupModify, "add_or_mod": GroupPut, "delete": GroupDelete}
	var mods []GroupMod
	err := eachLine(r, func(line int, text string) error {
		c := command
		if word, rest, _ := strings.Cut(text, " "); words[word] != GroupAdd || word == "add" {
			c, text = words[word], rest
		}
		mod, err := ParseGroupMod(text, c, names)
		mod.Line = line
		mods = append(mods, mod)
		return err
	})
	return mods, err
}

// eachLine calls fn for each line that is neither empty nor a comment. It adds the line
// number to errors of fn.
func eachLine(r io.Reader, fn func(line int, text string) error) error {
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 0, 64<<10), maxLine)
	line := 1
	for ; scan.Scan(); line++ {
		text, _, _ := strings.Cut(scan.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		if err := fn(line, text); err != nil {
			if pe, ok := err.(*ParseError); ok {
				pe.Line = line
			}
			return err
		}
	}
	if errors.Is(scan.Err(), bufio.ErrTooLong) {
		return tooLong(line)
	}
	return scan.Err()
}

func tooLong(line int) error {
	return &ParseError{Line: line, Word: "line", Expected: fmt.Sprintf("at most %d bytes", maxLine)}
}

// groupParser parses the text of one group.
type groupParser struct {
	names          Names
	mod            GroupMod
	hasID, hasType bool
}

func (p *groupParser) head(text string) error {
	g := &p.mod.Group
	for {
		t, rest, ok := nextToken(text)
		if !ok {
			return nil
		}
		text = rest
		switch t.key {
		case "group_id":
			id, err := parseGroupID(t)
			if err != nil {
				return err
			}
			g.ID, p.hasID = id, true
		case "type":
			if !p.groupType(t.value) {
				return wrong(t.value, "all, select, indirect or ff for type")
			}
			p.hasType = true
		case "selection_method":
			if t.value != "hash" && t.value != "dp_hash" {
				return wrong(t.value, "hash or dp_hash for selection_method")
			}
			g.Method = t.value
		case "selection_method_param":
			v, ok := parseUint(t.value, ^uint64(0))
			if !ok {
				return wrong(t.value, "a number for selection_method_param")
			}
			g.Param = v
		case "fields":
			g.Fields = t.value
			for _, name := range strings.FieldsFunc(t.value, func(r rune) bool { return strings.ContainsRune(separators, r) }) {
				id, ok := fieldNames[name]
				if !ok || id.IsTLV() {
					return wrong(name, "the name of a field of a fixed length, without a mask")
				}
				g.hashed = append(g.hashed, id)
			}
		default:
			return wrong(t.text, "group_id, type, selection_method, selection_method_param, fields or bucket")
		}
	}
}

func parseGroupID(t token) (uint32, error) {
	switch t.value {
	case "all", "any":
		return GroupAny, nil
	}
	v, ok := parseUint(t.value, MaxGroup)
	if !ok {
		return 0, wrong(t.value, "a group number from 0 to %d", uint32(MaxGroup))
	}
	return uint32(v), nil
}

func (p *groupParser) groupType(word string) bool {
	if word == "fast_failover" {
		word = "ff"
	}
	for i, w := range groupTypeWords {
		if w == word {
			p.mod.Group.Type = GroupType(i)
			return true
		}
	}
	return false
}

// bucket parses the text after "bucket=". It takes each word that is no setting of a bucket as an action.
func (p *groupParser) bucket(text string) error {
	g := &p.mod.Group
	b := Bucket{ID: uint32(len(g.Buckets)), WatchPort: PortNone, WatchGroup: GroupAny}
	if g.Type == GroupSelect {
		b.Weight = 1
	}
	var actions []string
	for {
		t, rest, ok := nextToken(text)
		if !ok {
			break
		}
		text = rest
		known, err := p.setting(&b, t)
		switch {
		case err != nil:
			return err
		case known:
		case t.key == "actions" || t.key == "action":
			actions = append(actions, t.value)
		default:
			actions = append(actions, t.text)
		}
	}
	if len(actions) == 0 {
		return wrong("bucket", "actions in each bucket")
	}
	a := actionParser{names: p.names, check: actionChecker{table: TableAll, nested: true}}
	var err error
	if b.Actions, err = a.parse(strings.Join(actions, ",")); err != nil {
		return err
	}
	b.order()
	g.Buckets = append(g.Buckets, b)
	return nil
}

func (p *groupParser) setting(b *Bucket, t token) (known bool, err error) {
	switch t.key {
	case "weight":
		if p.mod.Group.Type != GroupSelect {
			return true, wrong(t.text, "a weight in select groups only")
		}
		return true, parseUint16(t, &b.Weight)
	case "bucket_id":
		v, ok := parseUint(t.value, MaxGroup)
		if !ok {
			return true, wrong(t.value, "a number of a bucket")
		}
		b.ID = uint32(v)
		return true, nil
	case "watch_port":
		b.WatchPort, err = parsePort(t.value, p.names)
		return true, err
	case "watch_group":
		b.WatchGroup, err = parseGroupID(t)
		return true, err
	}
	return false, nil
}

// check returns an error if the group's type does not allow its buckets, or if two buckets have the same
// number.
func (g *Group) check() error {
	seen := make(map[uint32]bool)
	for i := range g.Buckets {
		b := &g.Buckets[i]
		if seen[b.ID] {
			return wrong(fmt.Sprintf("bucket_id:%d", b.ID), "a number for each bucket of its own")
		}
		seen[b.ID] = true
		if g.Type == GroupFailover && b.WatchPort == PortNone && b.WatchGroup == GroupAny {
			return wrong("bucket", "watch_port or watch_group in each bucket of a fast_failover group")
		}
	}
	switch {
	case g.Type == GroupIndirect && len(g.Buckets) > 1:
		return wrong("bucket", "one bucket in an indirect group")
	case len(g.Buckets) > MaxBuckets:
		return wrong("bucket", "at most %d buckets", MaxBuckets)
	}
	return nil
}

// FormatGroup returns the group as dump-groups shows it, without the leading blank.
// ParseGroupMod accepts the result.
func FormatGroup(g *Group, names Names) string {
	var b strings.Builder
	fmt.Fprintf(&b, "group_id=%d,type=%s", g.ID, groupTypeWords[g.Type])
	if g.Method != "" {
		b.WriteString(",selection_method=" + g.Method)
	}
	if g.Param != 0 {
		fmt.Fprintf(&b, ",selection_method_param=%d", g.Param)
	}
	if g.Fields != "" {
		b.WriteString(",fields(" + g.Fields + ")")
	}
	for i := range g.Buckets {
		k := &g.Buckets[i]
		fmt.Fprintf(&b, ",bucket=bucket_id:%d,", k.ID)
		if g.Type == GroupSelect && k.Weight != 1 {
			fmt.Fprintf(&b, "weight:%d,", k.Weight)
		}
		if k.WatchPort != PortNone {
			b.WriteString("watch_port:" + formatPort(k.WatchPort, names) + ",")
		}
		if k.WatchGroup != GroupAny {
			fmt.Fprintf(&b, "watch_group:%d,", k.WatchGroup)
		}
		b.WriteString("actions=" + FormatActions(k.Actions, names))
	}
	return b.String()
}

func (p *actionParser) group(t token) (Action, error) {
	v, ok := parseSigned(t.value)
	if !ok {
		return Action{}, wrong(t.text, "group:NUMBER")
	}
	return Action{Kind: ActGroup, Value: Value64(uint64(uint32(v)))}, nil // the lower 32 bits, as in ovs-ofctl
}
