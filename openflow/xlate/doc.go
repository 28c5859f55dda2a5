// SPDX-License-Identifier: Apache-2.0

// Package xlate translates OpenFlow tables into megaflows: it runs a frame's key through the tables of a
// bridge and makes one megaflow of the result. It runs in the control process and may allocate. Package
// ofproto has the tables, package openflow the flows and their actions, package fdb the addresses that
// the action normal uses.
//
// A Translation is right for all keys that agree with the frame's key on the bits of its Mask. So the
// translation reads the frame only through methods that add the bits they read to the mask (visit.go).
// The tests compare it with a slow interpreter of the tables that has no megaflows.
//
// The way of a frame:
//
//	translate.go, translation.go          takes a frame through the tables; the result
//	env.go                                ports, tunnels and addresses, which the caller provides
//	bridge.go, segment.go, depends.go     several bridges; VNIs; addresses that the result depends on
//	visit.go, execute.go, commit.go       reads the frame, executes actions, emits a megaflow's actions
//	track.go, recirc.go, pause.go         translations that continue after ct, a change or a controller
//	binding.go, queue.go                  source addresses and rates that a port may use
//	bond.go                               ports of several members
//	mirror.go, sample.go                  copies for the mirrors of a bridge, samples for its exporters
//	tableset.go                           the tables that a translation has searched
//
// The action normal (weft-central is the central controller of several hosts):
//
//	normal.go, vlan.go, tags.go           learns, forwards and floods within VLANs
//	vlanlimit.go                          hides what is behind the outer tag
//	network.go, ask.go                    in a network that weft-central has declared
//	checks.go, policy.go                  rules of weft-central's groups
//	answer.go, overlay.go                 answers ARP and ND; replicates to remotes
//	request.go                            takes guests' requests that the host itself answers
//	centraltable.go                       continues in the table of weft-central's flows
//
// Options of Geneve: tlv.go has the fields tun_metadata, optiontable.go the sets of options that frames
// have brought.
//
// The other actions: actionset.go, checklarger.go, controller.go, controllernote.go, encap.go, nsh.go,
// fintimeout.go, group.go, learn.go, links.go, meter.go, packetout.go, resubmit.go, shim.go, stack.go,
// truncate.go. Their texts and their wire formats are in files of the same names in package openflow.
//
// Translations of one bridge or of several may run concurrently. Package ofproto says which methods of
// Tables need exclusive access.
package xlate
