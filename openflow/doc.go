// SPDX-License-Identifier: Apache-2.0

// Package openflow has OpenFlow flows, groups and meters as Open vSwitch defines them: their matches and
// actions, the text that ovs-ofctl reads and prints, and the encoding in OpenFlow messages. It runs in
// the control process, may allocate, and keeps no state. Package ofproto has the flow tables, package
// xlate translates a frame's key through the tables into a megaflow, and package ofp has OpenFlow's
// messages.
//
// Fields and matches:
//
//	fields.go, ctfields.go, tlvfield.go   the table of fields, with their names and their bits in a Flow
//	flow.go, value.go, packed.go          the 64-bit words of a frame (Flow) and of a Match
//	prereq.go, packettype.go              which protocol a field needs
//	tlvmap.go, tlvoptions.go              the Geneve options that the fields tun_metadata stand for
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
// The parser of text and the decoder of messages are separate. Both check actions by the rules in
// check.go, and both use the table of fields. They are in one package, because two packages would
// have to export about 70 more names, such as the columns of the table of fields.
//
// Actions, each with its parser, its text and its wire format: action.go, actionrow.go (a row
// of each kind), actionset.go, checklarger.go, conjunction.go, controller.go, ct.go, decttl.go,
// encap.go, fintimeout.go, learn.go, links.go, nsh.go, packetout.go, queue.go, sample.go, shim.go,
// stack.go, truncate.go.
package openflow
