// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"weft/openflow"
	"weft/openflow/ofproto"
)

// checkTables checks the flow tables, groups and meters of a file. It applies them to tables in this
// process that serve only this check. So the user learns that a flow uses a missing group, or exceeds a
// limit, before the switch changes. Without prune, the tables also get the objects that only the switch
// has.
func checkTables(old, next *bridgeContents, names openflow.Names, prune bool) error {
	meters, groups, flows, tables := next.Meters, next.Groups, next.Flows, next.Tables
	if !prune {
		meters, groups = together(old.Meters, meters), together(old.Groups, groups)
		flows = slices.Concat(old.Flows, flows)
		tables = slices.Concat(old.Tables, tables)
	}
	p := ofproto.NewTables(ofproto.Limits{Rules: openflow.MaxRules})
	tlvs, err := next.tlvMap()
	if err != nil {
		return err
	}
	if !prune {
		for _, m := range old.TLVs { // an error means that the file replaces the mapping m
			list, _ := openflow.ParseTLVMappings(m)
			if more, err := tlvs.Changed(&openflow.TLVMod{Mappings: list}); err == nil {
				tlvs = more
			}
		}
	}
	if err := p.ChangeTLVs(&openflow.TLVMod{Mappings: tlvs.Mappings()}); err != nil {
		return err
	}
	names = openflow.WithTLVs(names, tlvs)
	for _, t := range tables {
		if t.Table < 0 || t.Table >= openflow.Tables || t.Table == ofproto.CentralTable {
			return fmt.Errorf("table %d: expected a number from 0 to %d, without %d", t.Table, openflow.Tables-1, ofproto.CentralTable)
		}
		p.Configure(uint8(t.Table), ofproto.TableConfig{Limit: t.Limit, Evict: t.Evict})
	}
	meterMods, err := openflow.ParseMeterMods(strings.NewReader(lines(meters)), openflow.MeterAdd)
	if err != nil {
		return fmt.Errorf("meters: %w", err)
	}
	if _, _, err := p.ApplyMeters(meterMods, 0); err != nil {
		return fmt.Errorf("meters: %w", err)
	}
	groupMods, err := openflow.ParseGroupMods(strings.NewReader(lines(groups)), openflow.GroupAdd, names)
	if err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	if _, err := p.ApplyGroups(groupMods, 0); err != nil {
		return fmt.Errorf("groups: %w", err)
	}
	flowMods, err := openflow.ParseFlowMods(lines(flows), openflow.Add, names)
	if err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	if _, err := p.Apply(flowMods, 0); err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	return nil
}

// together returns the texts of the groups or meters in newItems, and of those in oldItems that have other
// numbers.
func together(oldItems, newItems []string) []string {
	all := slices.Clone(newItems)
	for _, text := range oldItems {
		if !slices.ContainsFunc(newItems, func(n string) bool { return number(n) == number(text) }) {
			all = append(all, text)
		}
	}
	return all
}
