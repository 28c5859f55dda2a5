// SPDX-License-Identifier: Apache-2.0

// Package openflow has flows as an operator of Open vSwitch knows them: matches and actions in
// ovs-ofctl's text and on the wire, with groups and meters. It runs in the control process
// and may allocate. It keeps no state. Package ofproto has the tables of flows, package xlate
// translates a frame's key through the tables into a megaflow, and package ofp has OpenFlow's
// messages.
//
// Fields and matches:
//
//	fields.go, ctfields.go, tlvfield.go   the table of fields, and what a field stands for
//	flow.go, value.go, packed.go          the words of a frame and of a match
//	prereq.go, packettype.go              which protocol a field needs
//	tlvmap.go, tlvoptions.go              options of Geneve that fields tun_metadata name
//	ports.go                              reserved ports, names of ports
//
// Flows: flowmod.go has a change of flows, which is also the filter of a dump; group.go and
// meter.go have a group and a meter.
//
// Text:
//
//	parse*.go                             flows, matches, fields, actions and groups
//	format*.go                            the same, as ovs-ofctl prints them
//	complete.go                           the words that a shell suggests
//
// The wire:
//
//	oxm*.go, match10.go                   matches
//	wire*.go                              actions, instructions, groups and errors
//
// check.go has the rules of valid actions (actionChecker). The parser of text and the decoder
// of the wire are apart and share only these rules, the values and the table of fields. The
// wire is no package of its own: it would make about 70 names public that now belong to this
// package alone, such as the columns of the table of fields and each rule of actions.
//
// Actions, each with its parser, its text and its wire format: action.go, actionrow.go (a row
// of each kind), actionset.go, checklarger.go, conjunction.go, controller.go, ct.go, decttl.go,
// encap.go, fintimeout.go, learn.go, links.go, nsh.go, packetout.go, queue.go, sample.go, shim.go,
// stack.go, truncate.go.
package openflow
