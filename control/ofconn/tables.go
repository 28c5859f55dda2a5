// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"fmt"
	"slices"

	"weft/openflow"
	"weft/openflow/ofp"
	"weft/openflow/ofproto"
)

func (c *Conn) groupMod(r *ofp.Request) error {
	change, err := ofp.DecodeGroupMod(r)
	if err != nil {
		return err
	}
	s := c.service.setup.Switch
	if change.Insert || change.Remove {
		// If two connections change one group at the same time, one change may be lost.
		// OpenFlow has the same limitation: bundles and barriers concern one
		// connection.
		present := s.Groups(change.Group.ID)
		if len(present) == 0 || change.Group.ID == openflow.GroupAny {
			return refused(openflow.ErrGroupUnknown, fmt.Sprintf("group_mod: group %d: no such group", change.Group.ID))
		}
		if err := changeBuckets(&change, present[0].Group); err != nil {
			return err
		}
	}
	return s.ApplyGroups([]openflow.GroupMod{change.GroupMod}, ownChange{c, r.XID})
}

// changeBuckets turns an insertion or removal of buckets into a change of the whole
// group.
func changeBuckets(change *ofp.GroupChange, old *openflow.Group) error {
	buckets, fresh := slices.Clone(old.Buckets), change.Group.Buckets
	at := slices.IndexFunc(buckets, func(b openflow.Bucket) bool { return b.ID == change.Bucket })
	if change.Insert {
		for i := range fresh {
			if slices.ContainsFunc(buckets, func(b openflow.Bucket) bool { return b.ID == fresh[i].ID }) {
				return refused(openflow.ErrGroupBucketExists, fmt.Sprintf("group_mod: bucket %d exists", fresh[i].ID))
			}
			if old.Type != openflow.GroupSelect {
				fresh[i].Weight = 0
			} else if fresh[i].Weight == 0 {
				fresh[i].Weight = 1
			}
		}
		switch {
		case change.Bucket == ofp.BucketFirst:
			at = 0
		case change.Bucket == ofp.BucketLast:
			at = len(buckets)
		case at < 0:
			return refused(openflow.ErrGroupUnknownBucket, fmt.Sprintf("group_mod: bucket %d: no such bucket", change.Bucket))
		default:
			at++ // insert after the bucket that the request names
		}
		buckets = slices.Insert(buckets, at, fresh...)
	} else {
		switch {
		case change.Bucket == ofp.BucketAll:
			buckets = nil
		case len(buckets) > 0 && change.Bucket == ofp.BucketFirst:
			buckets = buckets[1:]
		case len(buckets) > 0 && change.Bucket == ofp.BucketLast:
			buckets = buckets[:len(buckets)-1]
		case at < 0:
			return refused(openflow.ErrGroupUnknownBucket, fmt.Sprintf("group_mod: bucket %d: no such bucket", change.Bucket))
		default:
			buckets = slices.Delete(buckets, at, at+1)
		}
	}
	next := *old
	next.Buckets = buckets
	g, err := openflow.NewGroup(next, old.HashedFields())
	change.Group = g
	return err
}

func (c *Conn) groupStats(r *ofp.Request) error {
	id, err := ofp.DecodeGroupSelection(r)
	if err != nil {
		return err
	}
	reply := ofp.NewReply(r)
	for _, g := range c.service.setup.Switch.Groups(id) {
		reply.Add(func(b []byte) []byte { return ofp.AppendGroupStats(b, g.ID, uint32(g.Flows), &g.Stats, nowNS()) })
	}
	return c.writeAll(reply)
}

func (c *Conn) groupDesc(r *ofp.Request) error {
	id, err := ofp.DecodeGroupSelection(r)
	if err != nil {
		return err
	}
	reply := ofp.NewReply(r)
	for _, g := range c.service.setup.Switch.Groups(id) {
		reply.Add(func(b []byte) []byte { return ofp.AppendGroupDesc(b, r, g.Group) })
	}
	return c.writeAll(reply)
}

func (c *Conn) meterMod(r *ofp.Request) error {
	mod, err := ofp.DecodeMeterMod(r)
	if err != nil {
		return err
	}
	return c.service.setup.Switch.ApplyMeters([]openflow.MeterMod{mod}, ownChange{c, r.XID})
}

func (c *Conn) meters(r *ofp.Request, entry func(b []byte, m *Meter) []byte) error {
	id, err := ofp.DecodeMeterSelection(r)
	if err != nil {
		return err
	}
	list := c.service.setup.Switch.Meters(id)
	if len(list) == 0 && id != openflow.MeterAll {
		return refused(openflow.ErrMeterUnknown, fmt.Sprintf("meter %d: no such meter", id))
	}
	reply := ofp.NewReply(r)
	for i := range list {
		reply.Add(func(b []byte) []byte { return entry(b, &list[i]) })
	}
	return c.writeAll(reply)
}

func (c *Conn) meterStats(r *ofp.Request) error {
	return c.meters(r, func(b []byte, m *Meter) []byte { return ofp.AppendMeterStats(b, &m.Counters) })
}

func (c *Conn) meterConfig(r *ofp.Request) error {
	return c.meters(r, func(b []byte, m *Meter) []byte { return ofp.AppendMeterConfig(b, m.Meter) })
}

func (c *Conn) tables(r *ofp.Request, entry func(b []byte, t *ofp.TableState) []byte) error {
	reply := ofp.NewReply(r)
	list := c.service.setup.Switch.Tables()
	for i := range list {
		reply.Add(func(b []byte) []byte { return entry(b, &list[i]) })
	}
	return c.writeAll(reply)
}

func (c *Conn) tableStats(r *ofp.Request) error {
	c.service.setup.Switch.PullCounts()
	return c.tables(r, func(b []byte, t *ofp.TableState) []byte { return ofp.AppendTableStats(b, c.version, t) })
}

func (c *Conn) tableDesc(r *ofp.Request) error {
	return c.tables(r, func(b []byte, t *ofp.TableState) []byte { return ofp.AppendTableDesc(b, t) })
}

// tableFeatures answers with the features of the tables. It refuses a request that
// would change them.
func (c *Conn) tableFeatures(r *ofp.Request) error {
	if r.More || len(r.Body) > 0 {
		return refused(openflow.ErrTableFeaturesEPERM, "table_features: expected an empty request")
	}
	return c.tables(r, func(b []byte, t *ofp.TableState) []byte { return ofp.AppendTableFeatures(b, c.version, t) })
}

func (c *Conn) tableMod(r *ofp.Request) error {
	change, err := ofp.DecodeTableMod(r)
	switch {
	case err != nil:
		return err
	case c.version < openflow.Version14:
		return nil // the tables already drop frames that match no flow
	case change.Table != openflow.TableAll && change.Table == ofproto.CentralTable:
		return refused(openflow.ErrTableModEPERM, "table_mod: the table belongs to weft-central")
	}
	return c.service.setup.Switch.SetEviction(change.Table, change.Evict)
}

func (c *Conn) ports(r *ofp.Request, entry func(b []byte, p *Port) []byte) error {
	no, all, err := ofp.DecodePortSelection(r)
	if err != nil {
		return err
	}
	reply, found := ofp.NewReply(r), all
	list := c.service.setup.Switch.Ports()
	for i := range list {
		if all || list[i].No == no {
			found = true
			reply.Add(func(b []byte) []byte { return entry(b, &list[i]) })
		}
	}
	if !found && r.Kind == ofp.PortDesc {
		return refused(openflow.ErrBadPort, fmt.Sprintf("port %d: no such port", no))
	}
	return c.writeAll(reply)
}

func (c *Conn) portStats(r *ofp.Request) error {
	return c.ports(r, func(b []byte, p *Port) []byte { return ofp.AppendPortStats(b, c.version, &p.Counters) })
}

func (c *Conn) portDesc(r *ofp.Request) error {
	return c.ports(r, func(b []byte, p *Port) []byte { return ofp.AppendPort(b, c.version, &p.Port) })
}

// modifiable returns the bits of a port's configuration that port_mod may change.
func (c *Conn) modifiable() uint32 {
	if c.version == openflow.Version10 {
		return ofp.ConfigDown | ofp.ConfigNoFlood
	}
	return ofp.ConfigDown
}

// portMod sets whether a port is down, and in OpenFlow 1.0 whether frames are flooded to
// it. It refuses other changes.
func (c *Conn) portMod(r *ofp.Request) error {
	change, err := ofp.DecodePortMod(r)
	if err != nil {
		return err
	}
	for _, p := range c.service.setup.Switch.Ports() {
		if p.No != change.No {
			continue
		}
		changed := (p.Config ^ change.Config) & change.Mask
		switch {
		case p.MAC != change.MAC:
			return refused(openflow.ErrPortModBadHWAddr, fmt.Sprintf("port_mod: port %d has another hardware address", p.No))
		case changed == 0:
			return nil
		case changed&^c.modifiable() != 0 && c.version == openflow.Version10:
			return refused(openflow.ErrRequestEPERM, "port_mod: expected down, or no flooding")
		case changed&^c.modifiable() != 0:
			return refused(openflow.ErrPortModBadConfig, "port_mod: expected down")
		}
		if err := c.service.setup.Switch.SetPortConfig(p.No, p.Config^changed); err != nil {
			if c.version == openflow.Version10 {
				return refused(openflow.ErrRequestEPERM, err.Error())
			}
			return refused(openflow.ErrPortModEPERM, err.Error())
		}
		return nil
	}
	return refused(openflow.ErrPortModBadPort, fmt.Sprintf("port_mod: port %d: no such port", change.No))
}
