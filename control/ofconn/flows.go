// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"encoding/binary"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

// maxBatch limits the number of flow_mods and barriers in one batch.
const maxBatch = 4096

// flowBatch has flow_mods and barriers that follow each other in the read buffer. The switch applies
// their changes together. Each message gets its own answer.
type flowBatch struct {
	conn     *Conn
	mods     []openflow.FlowMod
	messages []batchedMessage
	xid      uint32 // of the first message
}

// batchedMessage is a message in the batch: a flow_mod, whose change is mods[mod], or a barrier.
// "start" has the message's first bytes, because an OpenFlow error repeats them.
type batchedMessage struct {
	start   []byte
	mod     int
	barrier bool
	xid     uint32
}

// flowMod applies a flow_mod together with the flow_mods that follow it in the read
// buffer. The answer to a barrier in between comes after all changes of the batch,
// although the barrier asks only for the changes before it.
func (c *Conn) flowMod(r *ofp.Request) error {
	batch, most := flowBatch{conn: c, xid: r.XID}, maxBatch
	if c.monitoring() { // an abbreviated event names a single flow_mod as its cause
		most = 1
	}
	err := batch.add(r)
	failed := append([]byte(nil), r.Message...)
	for err == nil && len(batch.messages) < most {
		m, more := c.nextFlowMod()
		if !more {
			break
		}
		next, bad := c.identify(m)
		if bad == nil {
			bad = batch.add(&next)
		}
		if err, failed = bad, m; bad != nil {
			failed = append([]byte(nil), m...)
		}
		if _, discard := c.reader.Discard(len(m)); discard != nil {
			return discard
		}
		c.service.counts.Messages.Add(1)
	}
	if stop := batch.apply(); stop != nil {
		return stop
	}
	if err != nil {
		return c.fail(failed, err)
	}
	return nil
}

func (f *flowBatch) add(r *ofp.Request) error {
	if r.Kind == ofp.BarrierRequest {
		f.messages = append(f.messages, batchedMessage{barrier: true, xid: r.XID})
		return nil
	}
	mod, err := ofp.DecodeFlowMod(r, f.conn.tableInCommand)
	if err != nil {
		return err
	}
	f.messages = append(f.messages, batchedMessage{start: append([]byte(nil), r.Message[:min(len(r.Message), 64)]...), mod: len(f.mods)})
	f.mods = append(f.mods, mod)
	return nil
}

// apply applies the changes of the batch in one call of the switch, and answers the messages in
// order.
func (f *flowBatch) apply() error {
	c := f.conn
	var errs []error
	if len(f.mods) > 0 {
		errs = c.service.setup.Switch.ApplyEach(f.mods, ownChange{c, f.xid})
	}
	var replies []byte
	for i := range f.messages {
		m := &f.messages[i]
		switch {
		case m.barrier:
			replies = ofp.AppendBarrierReply(replies, c.version, m.xid)
		case errs[m.mod] != nil:
			if err := c.write(replies); err != nil {
				return err
			}
			replies = replies[:0]
			if err := c.fail(m.start, errs[m.mod]); err != nil {
				return err
			}
		}
	}
	return c.write(replies)
}

// nextFlowMod returns the next message of the read buffer if it is a complete flow_mod
// or barrier. The message stays in the read buffer.
func (c *Conn) nextFlowMod() (m []byte, ok bool) {
	const flowModType = 14
	if c.reader.Buffered() < ofp.HeaderLen {
		return nil, false
	}
	head, err := c.reader.Peek(ofp.HeaderLen)
	if err != nil || ofp.Version(head[0]) != c.version {
		return nil, false
	}
	n := int(binary.BigEndian.Uint16(head[2:]))
	if n < ofp.HeaderLen || c.reader.Buffered() < n {
		return nil, false
	}
	m, err = c.reader.Peek(n)
	nx := head[1] == ofp.TypeExperimenter && n >= 16 && binary.BigEndian.Uint64(m[8:]) == openflow.NiciraVendor<<32|13
	return m, err == nil && (head[1] == flowModType || nx || head[1] == barrierType(c.version))
}

func barrierType(v ofp.Version) uint8 {
	if v == openflow.Version10 {
		return 18
	}
	return 20
}

// flowStats answers a request for flows. It reads the flows in several steps, so that no lock
// is held while the peer reads.
func (c *Conn) flowStats(r *ofp.Request) error {
	filter, err := ofp.DecodeFlowSelection(r)
	if err != nil {
		return err
	}
	s := c.service.setup.Switch
	s.PullCounts()
	reply := ofp.NewReply(r)
	var rules []ofproto.Rule
	for from, more := uint32(0), true; more; {
		rules, from, more = s.ScanRules(&filter, from, rules[:0])
		for i := range rules {
			reply.Add(func(b []byte) []byte { return ofp.AppendFlowStats(b, r, &rules[i], nowNS()) })
		}
		for _, m := range reply.Take() {
			if err := c.write(m); err != nil {
				return err
			}
		}
	}
	return c.writeAll(reply)
}

func (c *Conn) aggregate(r *ofp.Request) error {
	filter, err := ofp.DecodeFlowSelection(r)
	if err != nil {
		return err
	}
	s := c.service.setup.Switch
	s.PullCounts()
	var rules []ofproto.Rule
	var packets, bytes uint64
	flows := uint32(0)
	for from, more := uint32(0), true; more; {
		rules, from, more = s.ScanRules(&filter, from, rules[:0])
		for i := range rules {
			packets, bytes = packets+rules[i].Packets, bytes+rules[i].Bytes
		}
		flows += uint32(len(rules))
	}
	return c.replyBody(r, func(b []byte) []byte { return ofp.AppendAggregate(b, r, packets, bytes, flows) })
}
