// SPDX-License-Identifier: Apache-2.0

// Package ofproto has the OpenFlow tables of a switch. The type Tables has the flow tables of
// one bridge, its groups, its meters and its map of Geneve options. It runs in the control
// process and may allocate. Package openflow has the flows, their text and their wire format;
// package xlate runs frames through the tables.
//
// A change of several flows, groups or meters succeeds as a whole or changes nothing. A look-up
// tells its Visitor which bits of the flow it has read. The tests compare the classifier with a linear
// search.
//
//	table.go, rule.go, bridge.go          the tables of a bridge, a rule, limits that bridges share
//	apply.go, applyeach.go                changes as a whole, or one by one
//	select.go, sortrules.go, format.go    the rules that a filter selects, their order and text
//	classifier.go, prefix.go, conjunction.go   finds the rule that matches a frame
//	tableconfig.go, eviction.go, fintimeout.go   limits of a table, timeouts of rules
//	learn.go                              flows that learn actions add
//	group.go, groupstats.go, meter.go     groups and meters
//	tlv.go                                the map of Geneve options
//	centraltable.go                       the table of weft-central's flows
//
// The owner of the Tables guards them, for example with a sync.RWMutex. These methods need
// exclusive access to the Tables of all bridges: ChangeTLVs, Configure, SendExceptions, SetFragments,
// Expire, RefreshLearned, Finished.ReduceTimeouts, and each method whose name begins with Apply
// or Credit. All other methods, and translations, may run concurrently with each other.
package ofproto
