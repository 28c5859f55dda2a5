// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"math/bits"

	"weft/openflow"
)

// TLVs returns the bridge's TLV map, which maps Geneve options to the fields tun_metadata. It may be called
// without a lock.
func (p *Tables) TLVs() *openflow.TLVMap { return p.tlvs.Load() }

// keepsTLVs returns an error if a flow or a group uses a field tun_metadata that nextMap no longer maps.
func (p *Tables) keepsTLVs(nextMap *openflow.TLVMap) error {
	var gone uint64
	for i := range openflow.TLVFields {
		if id := openflow.FTunMetadata + openflow.FieldID(i); nextMap.Field(id) == nil && p.TLVs().Field(id) != nil {
			gone |= 1 << i
		}
	}
	if gone == 0 {
		return nil
	}
	if gone &= p.tlvUse(); gone != 0 {
		return openflow.Errorf(openflow.ErrTLVInUse, "%v is used by a flow or a group: delete the flow or group first", openflow.FTunMetadata+openflow.FieldID(bits.TrailingZeros64(gone)))
	}
	return nil
}

// ChangeTLVs changes the TLV map of the bridge. The caller must have exclusive access to the tables. If
// ChangeTLVs returns an error (*CodedError), the map is unchanged.
func (p *Tables) ChangeTLVs(mod *openflow.TLVMod) error {
	next, err := p.TLVs().Changed(mod)
	if err != nil {
		return err
	}
	if err := p.keepsTLVs(next); err != nil {
		return err
	}
	p.tlvs.Store(next)
	p.generation++
	return nil
}

// checkTLVs returns an error if m uses a field tun_metadata that had another mapping when m was parsed. The
// bytes of m would then be those of another option.
func (p *Tables) checkTLVs(m *openflow.FlowMod) error {
	if m.TLVs == nil || m.Command >= openflow.Delete {
		return nil
	}
	match := m.Match.Unpack()
	return p.sameMappings(match.Mask[openflow.WTLVs]|openflow.UsedTLVs(m.Actions), m.TLVs)
}

// checkGroupTLVs returns an error if the actions of m use a field tun_metadata that had another mapping when
// m was parsed.
func (p *Tables) checkGroupTLVs(m *openflow.GroupMod) error {
	if m.TLVs == nil || m.Command == openflow.GroupDelete {
		return nil
	}
	return p.sameMappings(m.Group.UsedTLVs(), m.TLVs)
}

// sameMappings returns an error if the bridge's TLV map and the map "earlier" have different mappings for a
// field tun_metadata. It compares only the fields whose bit is set in "used".
func (p *Tables) sameMappings(used uint64, earlier *openflow.TLVMap) error {
	for ; used != 0; used &= used - 1 {
		id := openflow.FTunMetadata + openflow.FieldID(bits.TrailingZeros64(used))
		if f := p.TLVs().Field(id); f == nil || f != earlier.Field(id) && f.TLVMapping != earlier.Field(id).TLVMapping {
			return openflow.Errorf(openflow.ErrFlowInvalidTLV, "%v: its mapping has changed meanwhile; send the change again", id)
		}
	}
	return nil
}

// tlvUse returns the set of the fields tun_metadata that flows and groups of the bridge use. Bit n stands
// for tun_metadataN.
func (p *Tables) tlvUse() (used uint64) {
	for _, r := range p.rules {
		if r != nil {
			m := r.Match.Unpack()
			used |= m.Mask[openflow.WTLVs] | openflow.UsedTLVs(r.Actions)
		}
	}
	for _, g := range p.groups {
		used |= g.UsedTLVs()
	}
	return used
}
