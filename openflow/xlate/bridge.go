// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/packet"
)

// Several bridges share one data path. A frame belongs to the bridge of the port on which
// it arrives, so megaflows of several bridges match in_port. An output to a patch port
// continues the translation in the bridge of the port's peer.

// Bridges is an optional interface of an Env, for a switch that may have several bridges.
type Bridges interface {
	// Bridge returns the tables of a bridge and their Env, or nil for an unknown number.
	Bridge(number uint8) (*ofproto.Tables, Env)
	// Several reports whether there is more than one bridge.
	Several() bool
}

// Crossing is the passage of a frame through a patch port: Out is the port, and In is its peer. For a
// copy that a mirror sends, Out is the mirror and In is 0. Both are port numbers in the data path.
type Crossing struct{ Out, In uint32 }

// arrive makes the translation begin in the bridge of the input port. It sets in_port to the port's
// OpenFlow number in this bridge, because the key has the port's number in the data path.
func (x *xlate) arrive() {
	port, ok := x.env.PortAt(x.cameIn)
	if all, is := x.env.(Bridges); is && all.Several() {
		x.wc[flowtable.WPort] |= flowtable.InPortBits
		if ok {
			x.enter(port.Bridge)
		}
	}
	if ok && port.No != x.cameIn {
		const word = flowtable.WPort
		x.flow[word] = x.flow[word]&0xffffffff | uint64(port.No)<<32
		x.base[word] = x.flow[word]
	}
}

// enter makes the translation continue in the tables of another bridge. It returns false if no bridge
// has this number.
func (x *xlate) enter(bridge uint8) bool {
	if x.p.Bridge() == bridge {
		return true
	}
	all, ok := x.env.(Bridges)
	if !ok {
		return false
	}
	p, env := all.Bridge(bridge)
	if p == nil {
		return false
	}
	x.p, x.env = p, env
	return true
}

// setInPort sets in_port to the number of a patch port. The megaflow does not match this number,
// because it does not come from the arriving frame.
func (x *xlate) setInPort(number uint32) {
	const word = flowtable.WPort
	x.patch = number
	x.flow[word] = x.flow[word]&0xffffffff | uint64(number)<<32
	x.keep[word] &= 0xffffffff
}

// cross runs the frame through the bridge of a patch port's peer. As in Open vSwitch, that bridge
// sees no metadata, no registers, no tunnel fields and no state of connection tracking. When cross
// returns, the frame is unchanged for the rest of this bridge's actions.
func (x *xlate) cross(port *PortInfo) {
	x.usedPorts = true
	peer, ok := x.env.PortAt(port.Peer)
	if !ok || peer.Kind != PortPatch || peer.Peer != port.At() {
		x.noteDrop(packet.DropNoPort)
		x.note("the patch port has no peer")
		return
	}
	if peer.Off {
		x.noteDrop(packet.DropPortOff)
		x.note("the peer is down")
		return
	}
	x.mirror(port, true)
	if !x.descend() {
		return
	}
	mirrored, copying := x.mirrored, x.copying
	p, env, patch, rule, table, buckets := x.p, x.env, x.patch, x.rule, x.table, x.buckets
	flow, keep, tags, decs, set, stack, queue := x.flow, x.keep, x.tags, x.decs, x.actionSet, x.stack, x.queue
	if x.enter(peer.Bridge) {
		x.patches = append(x.patches, Crossing{Out: port.At(), In: peer.At()})
		x.setInPort(peer.No)
		for w := flowtable.WTunID; w < flowtable.WTunID+flowtable.TunnelWords; w++ {
			x.flow[w], x.keep[w] = 0, 0
		}
		for w := openflow.WMetadata; w < openflow.WConj; w++ { // pkt_mark stays
			x.flow[w], x.keep[w] = 0, 0
		}
		for w := openflow.WTLVs; w < openflow.FlowWords; w++ {
			x.flow[w], x.keep[w] = 0, 0
		}
		x.untrack()
		x.mirrored, x.copying = 0, false
		x.rule, x.table, x.buckets, x.actionSet, x.stack = nil, 0, 0, nil, nil
		x.note("crosses to " + peer.Name)
		x.inPeer()
	}
	x.p, x.env, x.patch, x.rule, x.table, x.buckets = p, env, patch, rule, table, buckets
	x.flow, x.keep, x.tags, x.decs, x.actionSet, x.stack, x.queue = flow, keep, tags, decs, set, stack, queue
	x.mirrored, x.copying = mirrored, copying
	x.dirty, x.exited = true, false
	x.depth--
}

// inPeer runs the frame through the tables of the bridge to which it has crossed. An earlier pop may
// have revealed headers that the key does not have. Then inPeer emits a second look-up in the datapath
// instead. The translation of that look-up runs the frame through the tables.
func (x *xlate) inPeer() {
	x.mirrorArrival()
	if x.opaque {
		x.commit()
		f := x.freeze(0)
		x.recirculate(&f)
		x.noteAgain(revealedNote)
		return
	}
	x.undone++
	x.pipeline(0, true)
	x.endLists()
	x.undone--
}
