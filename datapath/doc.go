// SPDX-License-Identifier: Apache-2.0

// Package datapath implements the worker, a thread that forwards frames. A pass is one turn of the
// worker's loop over its receive queues. These are the package's files, in the order in which a frame
// goes through them:
//
//	worker.go    the loop of passes: clock, mailbox, commands, queues
//	receive.go   a batch from one receive queue
//	gather.go    queues with few frames wait until more have come
//	park.go      queues that stay empty are not visited until a wake-up
//	fair.go      queues whose frames cost too much wait
//	receiver.go  guests in whose memory copies are slow get no frames for a while
//	account.go   ports that used more than their part of the worker's time wait
//	classify.go  decapsulate, extract keys, look up
//	execute.go   the actions of a run of frames of one flow
//	rewrite_arp_nd.go  changes to ARP, neighbour discovery and ICMP headers
//	rewrite_nsh.go     changes to the network service header
//	track.go     connection tracking, and the second look-up after it
//	fuse.go      one look-up instead of three for frames of established connections
//	sweep.go     a whole batch of fused connections at once
//	fragment.go  fragments that wait for the rest of their datagram
//	coalesce.go  merges the segments of a run into one large frame
//	meter.go     rate limits
//	controller.go  frames that flows send to the controller
//	sample.go    frames that exporters of samples get
//	tunnel.go    outer headers
//	send.go      pending lists, transmit queues, the end of the batch
//	kept.go      batches whose release waits for a postponed flush of an output
//	segment.go   offloads that an output does not take: checksums, cutting large frames
//	truncate.go  outputs that send only the first bytes of a frame
//	toobig.go    the ICMP error for a frame too long for its tunnel
//	offload.go   the counts of flows that run in the kernel
//	lend.go      connections that the kernel forwards
//	bfd.go       BFD sessions with the remotes of tunnels
//	answer.go    replies to ARP requests and neighbour solicitations
//	upcall.go    messages to the control process: misses, neighbours, faults
//	held.go      frames that wait for the answer of the control process
//	command.go   commands of the control process
//	messages.go  the encoding of commands and upcalls
//	fault.go     ports whose memory fails
//	sleep.go     waiting for a wake-up
//	inhand.go    the worker's current activity, for the watchdog
//	mailbox.go   adding and removing ports
//	capturepoints.go  where on the way of a frame captures look
//	capture.go   copies of frames for the control process
//	capturerecord.go  the encoding of these copies
//	shared.go    the memory that the worker shares with the control process
//
// The exits of each stage, by file: the stages to which its frames go next, and the reasons
// (packet.DropReason, without "Drop") under which it drops frames. TestExits compares the reasons with
// the code.
//
//	receive   -> classify
//	classify  -> execute, bfd; drops: what decapsulation and extraction have found (Frame.Drop)
//	execute   -> track, tunnel, truncate, send, answer, upcall; drops: Flow, Meter, Queue, and those of OpDrop
//	track     -> classify, execute; drops: Loop, and those of conntrack
//	fragment  -> held, track; drops: BadFragment, HeldExpired
//	tunnel    -> send, truncate, toobig, upcall; drops: NoRoute, TooBigForTunnel, and those of tunnel.Push
//	truncate  -> send, tunnel; drops: Loop
//	send      -> segment, receiver, kept; drops: NoPort, NotAttached, TxFull, and those of the port
//	segment   -> send; drops: OversizeFrame, TxFull
//	receiver  -> the port; drops: SlowReceiver
//	answer    -> the port; drops: Flow, NotAttached
//	bfd       -> the port; drops: BadBFD
//	upcall    -> held; drops: MissAgain, MissRingFull, NoNeighbour
//	held      -> command; drops: HeldExpired, HeldFull, HeldShare
//	command   -> classify, execute; drops: HeldFull, and those of CmdDropHeld
//	fault     -> none; drops: PortFault
//
// Some stages have a type for their state: captures, heldPool, upcalls, meters, accounting, receivers,
// waiter, kernelFlows. A method belongs to such a type if it needs only this state, and the stages to
// which the type refers. The type Worker has the methods that lead a frame from stage to stage.
//
// Invariants:
//   - A worker is one locked thread. It owns its Shared, its cache and its queues. While it
//     handles a batch, it neither allocates nor waits. It takes only spin locks: of a transmit
//     queue that several workers share, of the BFD sessions, and of tracked connections.
//   - A worker handles one batch at a time. The batch ends with finish: the worker sends
//     pending frames, flushes the output ports used, and then releases the buffers of the
//     receive queue. If a flush is postponed, it releases the buffers after that flush.
package datapath
