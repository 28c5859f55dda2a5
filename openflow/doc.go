// SPDX-License-Identifier: Apache-2.0

// Package openflow has flows as an operator of Open vSwitch knows them: matches and actions in
// ovs-ofctl's text and on the wire, and the tables of rules. It runs in the control process
// and may allocate. Package xlate translates a frame's key through the tables into a megaflow.
// Package ofp has OpenFlow's messages.
//
// Fields and matches:
//
//	fields.go, ctfields.go, tlvfield.go   the table of fields, and what a field stands for
//	flow.go, value.go, packed.go          the words of a frame and of a match
//	prereq.go, packettype.go              which protocol a field needs
//	tlvmap.go, tlvoptions.go              options of Geneve that fields tun_metadata name
//	ports.go                              reserved ports, names of ports
//
// Text:
//
//	parse*.go                             flows, matches, fields, actions and groups
//	format*.go, sortrules.go              the same, as ovs-ofctl prints them
//
// The wire:
//
//	oxm*.go, match10.go                   matches
//	wire*.go                              actions, instructions, groups and errors
//
// Actions, each with its text and its wire format: action.go, actionset.go, checklarger.go,
// controller.go, ct.go, encap.go, fintimeout.go, learn.go, links.go, packetout.go, queue.go,
// sample.go, shim.go, stack.go, truncate.go.
//
// Tables:
//
//	table.go, rule.go, flowmod.go         the tables, a rule, and a change of rules
//	bridge.go                             the limits that the tables of all bridges share
//	apply.go, applyeach.go                changes as a whole, or one by one
//	select.go                             the rules that a filter selects
//	classifier.go, prefix.go, conjunction.go   finds a key's rule
//	tableconfig.go, eviction.go           limits of a table
//	group.go, groupstats.go, meter.go     groups and meters
//	centraltable.go                       the table of weft-central's flows
//
// The owner of the Pipelines guards them, for example with a sync.RWMutex. These methods need
// exclusive access to the Pipelines of all bridges: ChangeTLVs, Configure, SendExceptions,
// Expire, RefreshLearned, Finished.ReduceTimeouts, and each method whose name begins with Apply
// or Credit. All other methods, and translations, may run concurrently with each other.
package openflow
