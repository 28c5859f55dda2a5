// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"errors"
	"slices"
	"sync"
	"time"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

// This file has the bundles of a connection. A bundle keeps its messages undecoded, in the
// memory of BundlePool, because decoded actions take up to 18 times as many bytes. The commit
// decodes the messages. Only one commit of all bridges runs at a time.

const (
	// maxBundles limits the open bundles of a connection. maxBundleItems limits the messages in
	// all its bundles, maxBundleFrames the packet_outs among them, and maxBundleActions the
	// actions in them. BundlePool limits the bytes. Further bundles and messages are refused and
	// counted.
	maxBundles       = 16
	maxBundleItems   = 1 << 20
	maxBundleFrames  = 1 << 10
	maxBundleActions = 6 << 20
	// bundleTimeout is the time without a message after which an open bundle is discarded.
	bundleTimeout = 10 * time.Second
)

// bundles has the open bundles of a connection by id.
type bundles struct {
	conn *Conn
	// mu guards the fields below, and the fields of each bundle. BundlePool.mu is the only lock that
	// may be taken while mu is held. The callers of begin, remove, take, release and charge hold mu.
	mu    sync.Mutex
	open  map[uint32]*bundle
	total bundleSize
	ended bool
}

// bundleSize has the amounts of each limited resource that one bundle uses, or all bundles of a
// connection.
type bundleSize struct {
	bytes                  int64 // bytes of the blocks that hold messages
	items, frames, actions int
}

// bundle is one open bundle: messages that change flows and groups or send frames, for one
// commit.
type bundle struct {
	flags    uint16
	closed   bool
	messages messageStore
	size     bundleSize
	opening  []byte // first 64 bytes of the message that opened the bundle; an error message about the bundle repeats them
	used     time.Time
	timer    *time.Timer // discards the bundle
}

// begin opens a bundle. The argument "message" is the request that opens it.
func (bs *bundles) begin(id uint32, flags uint16, message []byte) *bundle {
	b := &bundle{flags: flags, opening: append([]byte(nil), message[:min(len(message), 64)]...), used: time.Now()}
	b.timer = time.AfterFunc(bs.conn.service.setup.bundleTimeout, func() { bs.conn.expire(id, b) })
	bs.open[id] = b
	return b
}

// remove forgets the bundle with this id, if there is one, and frees its messages.
func (bs *bundles) remove(id uint32) {
	if b := bs.open[id]; b != nil {
		bs.take(id, b)
		bs.release(b)
	}
}

// take removes a bundle from the map of open bundles and stops its timer. The bundle keeps its
// messages, and counts against the limits, until the call of release.
func (bs *bundles) take(id uint32, b *bundle) {
	delete(bs.open, id)
	b.timer.Stop()
}

// release frees a bundle's messages, and subtracts its size from the counts of the limits.
func (bs *bundles) release(b *bundle) {
	t := &bs.total
	t.bytes, t.items, t.frames, t.actions = t.bytes-b.size.bytes, t.items-b.size.items, t.frames-b.size.frames, t.actions-b.size.actions
	b.messages.free()
	bs.conn.service.setup.Bundles.reserve(bs.conn.holder, -b.size.bytes)
}

// end discards all bundles when the connection ends.
func (bs *bundles) end() {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.ended = true
	for id := range bs.open {
		bs.remove(id)
	}
}

// touch restarts the timeout of all bundles. It runs after a request that took long, because the
// switch could not read the peer's messages meanwhile.
func (bs *bundles) touch() {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	for _, b := range bs.open {
		b.used = time.Now()
	}
}

// expire discards a bundle that got no message for bundleTimeout, as Open vSwitch does.
func (c *Conn) expire(id uint32, b *bundle) {
	bs := &c.bundles
	bs.mu.Lock()
	if bs.open[id] != b {
		bs.mu.Unlock()
		return
	}
	timeout := c.service.setup.bundleTimeout
	idle := time.Since(b.used)
	if c.handling.Load() {
		idle = 0
	}
	if idle < timeout {
		b.timer.Reset(timeout - idle)
		bs.mu.Unlock()
		return
	}
	bs.remove(id)
	bs.mu.Unlock()
	c.service.setup.Bundles.countExpired()
	// If the write fails, the connection's reader fails, too, and ends the connection.
	_ = c.refuse(b.opening, refused(openflow.ErrBundleTimeout, "bundle: no message for too long"))
}

func (c *Conn) bundleControl(r *ofp.Request) error {
	m, err := ofp.DecodeBundle(r)
	if err != nil {
		return err
	}
	b, err := c.controlBundle(r, &m)
	if err != nil {
		return err
	}
	if m.Type == ofp.BundleCommit {
		err := c.commit(b, r.XID)
		c.bundles.mu.Lock()
		c.bundles.release(b)
		c.bundles.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return c.write(ofp.AppendBundleReply(nil, r, &m))
}

// controlBundle opens, closes or removes a bundle. It returns the bundle that the request
// names.
func (c *Conn) controlBundle(r *ofp.Request, m *ofp.BundleMessage) (*bundle, error) {
	bs := &c.bundles
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.open[m.ID]
	if b != nil {
		b.used = time.Now()
		if m.Flags != b.flags && m.Type != ofp.BundleOpen {
			bs.remove(m.ID)
			return nil, refused(openflow.ErrBundleBadFlags, "bundle_control: other flags than at the opening")
		}
	}
	switch m.Type {
	case ofp.BundleOpen:
		switch {
		case b != nil:
			bs.remove(m.ID)
			return nil, refused(openflow.ErrBundleExists, "bundle_control: expected an id that no bundle has")
		case len(bs.open) >= maxBundles:
			return nil, refused(openflow.ErrBundleOutOf, "bundle_control: too many bundles are open")
		}
		return bs.begin(m.ID, m.Flags, r.Message), nil
	case ofp.BundleClose:
		switch {
		case b == nil:
			return nil, refused(openflow.ErrBundleBadID, "bundle_control: no such bundle")
		case b.closed:
			bs.remove(m.ID)
			return nil, refused(openflow.ErrBundleClosed, "bundle_control: the bundle is closed already")
		}
		b.closed = true
	case ofp.BundleCommit, ofp.BundleDiscard:
		if b == nil {
			return nil, refused(openflow.ErrBundleBadID, "bundle_control: no such bundle")
		}
		bs.take(m.ID, b)
		if m.Type == ofp.BundleDiscard {
			bs.release(b)
		}
	default:
		return nil, refused(openflow.ErrBundleBadType, "bundle_control: unknown type")
	}
	return b, nil
}

// commit applies the changes of a bundle and sends its frames. If one message is refused,
// commit sends the peer an error about that message, and returns the error of the bundle.
func (c *Conn) commit(b *bundle, xid uint32) error {
	failed, err := c.applyBundle(b, xid)
	if err == nil {
		return nil
	}
	var coded *openflow.CodedError
	if errors.As(err, &coded) && failed < b.size.items {
		var m []byte
		for at, i := 0, 0; i <= failed; i++ {
			m, at = b.messages.next(m[:0], at)
		}
		if err := c.refuse(m[:min(len(m), 64)], coded); err != nil {
			return err
		}
	}
	return refused(openflow.ErrBundleFailed, err.Error())
}

// applyBundle decodes the messages of a bundle and applies them. failed is the index of the
// message that was refused.
func (c *Conn) applyBundle(b *bundle, xid uint32) (failed int, err error) {
	pool := c.service.setup.Bundles
	pool.committing.Lock()
	defer pool.committing.Unlock()
	items := make([]ofproto.BundleItem, b.size.items)
	var m []byte
	for at, i := 0, 0; i < len(items); i++ {
		m, at = b.messages.next(m[:0], at)
		pool.decoding.do(func() {
			var r ofp.Request
			if r, err = c.identify(m); err == nil {
				items[i], err = c.bundleItem(&r)
			}
		})
		if err != nil { // for example if the TLV map has changed since the bundle got the message
			return i, err
		}
	}
	return c.service.setup.Switch.ApplyBundle(items, ownChange{c, xid})
}

func (c *Conn) bundleAdd(r *ofp.Request) error {
	m, err := ofp.DecodeBundle(r)
	if err != nil {
		return err
	}
	var item ofproto.BundleItem
	var bad error
	c.service.setup.Bundles.decoding.do(func() {
		var inner ofp.Request
		if inner, bad = c.identify(m.Inner); bad == nil {
			item, bad = c.bundleItem(&inner)
		}
	})
	bs := &c.bundles
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.open[m.ID]
	if b == nil {
		if len(bs.open) >= maxBundles {
			return refused(openflow.ErrBundleOutOf, "bundle_add_message: too many bundles are open")
		}
		b = bs.begin(m.ID, m.Flags, r.Message)
	}
	b.used = time.Now()
	switch {
	case b.closed:
		bs.remove(m.ID)
		return refused(openflow.ErrBundleClosed, "bundle_add_message: the bundle is closed")
	case m.Flags != b.flags:
		bs.remove(m.ID)
		return refused(openflow.ErrBundleBadFlags, "bundle_add_message: other flags than at the opening")
	case bad != nil:
		return bad
	}
	size := bundleSize{bytes: int64(b.messages.blocksFor(len(m.Inner))) * bundleBlock, items: 1, actions: actionsOf(&item)}
	if item.Frame != nil {
		size.frames = 1
	}
	err = bs.charge(b, &size)
	if err == nil && b.messages.add(m.Inner) != nil {
		bs.remove(m.ID)
		err = refused(openflow.ErrBundleTooMany, "bundle_add_message: the machine has no memory for it")
	}
	if err != nil {
		c.service.setup.Bundles.countRefused()
	}
	return err
}

// charge adds the size of a message to the counts of its connection. If a limit is exceeded, it
// returns an error. OpenFlow's error for a bundle that takes too much memory is MSG_TOO_MANY (1.4,
// 7.5.4.18).
func (bs *bundles) charge(b *bundle, size *bundleSize) error {
	setup := &bs.conn.service.setup
	limits, t := setup.bundleLimits, &bs.total
	switch {
	case bs.ended:
		return refused(openflow.ErrBundleTooMany, "bundle_add_message: the connection has ended")
	case t.items+size.items > limits.items:
		return refused(openflow.ErrBundleTooMany, "bundle_add_message: too many messages")
	case t.frames+size.frames > limits.frames:
		return refused(openflow.ErrBundleTooMany, "bundle_add_message: too many packet_outs")
	case t.actions+size.actions > limits.actions:
		return refused(openflow.ErrBundleTooMany, "bundle_add_message: too many actions")
	case !setup.Bundles.reserve(bs.conn.holder, size.bytes):
		return refused(openflow.ErrBundleTooMany, "bundle_add_message: out of memory for this peer's bundles")
	}
	for _, s := range []*bundleSize{t, &b.size} {
		s.bytes, s.items, s.frames, s.actions = s.bytes+size.bytes, s.items+size.items, s.frames+size.frames, s.actions+size.actions
	}
	return nil
}

// actionsOf returns the number of actions in a message of a bundle.
func actionsOf(item *ofproto.BundleItem) int {
	switch {
	case item.Flow != nil:
		return countActions(item.Flow.Actions)
	case item.Frame != nil:
		return countActions(item.Frame.Actions)
	}
	n := 0
	for i := range item.Group.Group.Buckets {
		n += 2 * countActions(item.Group.Group.Buckets[i].Actions) // each action is also in Bucket.Set
	}
	return n
}

// countActions returns the number of actions in a list. It counts the actions inside other
// actions, too.
func countActions(list []openflow.Action) int {
	n := len(list)
	for i := range list {
		n += countActions(list[i].Sub)
		if ct := list[i].CT; ct != nil {
			n += countActions(ct.Exec)
		}
	}
	return n
}

// bundleItem decodes a message of a bundle. The item keeps no reference to the message's bytes.
func (c *Conn) bundleItem(r *ofp.Request) (item ofproto.BundleItem, err error) {
	switch r.Kind {
	case ofp.FlowMod, ofp.NXFlowMod:
		mod, err := ofp.DecodeFlowMod(r, c.tableInCommand)
		return ofproto.BundleItem{Flow: &mod}, err
	case ofp.GroupMod, ofp.NXGroupMod:
		change, err := ofp.DecodeGroupMod(r)
		if err == nil && (change.Insert || change.Remove) {
			err = refused(openflow.ErrBundleUnsup, "bundle_add_message: expected no change of single buckets")
		}
		return ofproto.BundleItem{Group: &change.GroupMod}, err
	case ofp.PacketOut:
		out, err := ofp.DecodePacketOut(r)
		return ofproto.BundleItem{Frame: &openflow.PacketOut{Flow: out.Match.Value, Frame: slices.Clone(out.Frame), Actions: out.Actions}}, err
	}
	return item, refused(openflow.ErrBundleUnsup, "bundle_add_message: expected a flow_mod, a group_mod or a packet_out")
}
