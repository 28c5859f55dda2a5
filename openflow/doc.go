// SPDX-License-Identifier: Apache-2.0

// Package openflow implements the interface that an operator of Open vSwitch knows:
// ovs-ofctl's text for matches and actions, tables of rules, and the translation of a
// frame's key through these tables into one megaflow. It runs in the control process
// and may allocate. Package ofp has OpenFlow's messages, package fdb the addresses that
// the action normal uses.
//
// Fields and matches:
//
//	fields.go, ctfields.go, tlvfield.go   the table of fields, and what a field stands for
//	flow.go, value.go, packed.go          the words of a frame and of a match
//	prereq.go, packettype.go              which protocol a field needs
//	tlvmap.go, optiontable.go             options of Geneve that fields tun_metadata name
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
// Tables:
//
//	table.go, rule.go, flowmod.go         the tables, a rule, and a change of rules
//	apply.go, applyeach.go                changes as a whole, or one by one
//	select.go                             the rules that a filter selects
//	classifier.go, prefix.go, conjunction.go   finds a key's rule
//	tableconfig.go, eviction.go           limits of a table
//	group.go, groupstats.go, meter.go     groups and meters
//	centraltable.go                       the table of weft-central's flows
//
// Translation:
//
//	translate.go, translation.go          takes a frame through the tables; the result
//	visit.go, execute.go, commit.go       reads the frame, executes actions, emits a megaflow's actions
//	env.go                                what a translation asks its caller: ports, tunnels, addresses
//	bridge.go, segment.go, depends.go     several bridges; VNIs; addresses that the result depends on
//	track.go, recirc.go, pause.go         translations that continue after ct, a change or a controller
//	binding.go, queue.go                  what a port may send, and how fast
//
// The action normal:
//
//	normal.go, vlan.go, tags.go           learns, forwards and floods within VLANs
//	network.go, question.go               in a declared network of weft-central
//	answer.go, overlay.go                 answers ARP and ND; replicates to remotes
//
// The other actions, each with its text and its translation: action.go, actionset.go,
// checklarger.go, controller.go, controllernote.go, ct.go, encap.go, fintimeout.go, learn.go,
// links.go, packetout.go, resubmit.go, sample.go, shim.go, stack.go, tlvtranslate.go,
// truncate.go.
//
// The owner of the Pipelines guards them, for example with a sync.RWMutex. These methods need
// exclusive access to the Pipelines of all bridges: ChangeTLVs, Configure, SendExceptions,
// Expire, RefreshLearned, Finished.ReduceTimeouts, and each method whose name begins with Apply
// or Credit. All other methods, such as Translate, may run concurrently with each other.
package openflow
