// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"fmt"
	"strconv"
	"strings"

	"weft/flowtable"
	"weft/packet"
)

// FormatActions returns a list of actions in the words of ovs-ofctl, or "drop".
// ParseActions accepts the result.
func FormatActions(actions []Action, names Names) string {
	if len(actions) == 0 {
		return "drop"
	}
	if len(actions) == 1 {
		return formatAction(&actions[0], names)
	}
	texts := make([]string, len(actions))
	for i := range actions {
		texts[i] = formatAction(&actions[i], names)
	}
	return strings.Join(texts, ",")
}

var modWords = map[FieldID]string{
	FEthSrc: "mod_dl_src", FEthDst: "mod_dl_dst", FIPSrc: "mod_nw_src", FIPDst: "mod_nw_dst", FNwTOS: "mod_nw_tos",
	FIPECN: "mod_nw_ecn", FIPTTL: "mod_nw_ttl", FTCPSrc: "mod_tp_src", FTCPDst: "mod_tp_dst",
}

// shimWords has the word of the action that sets a field of an MPLS label stack entry.
var shimWords = map[FieldID]string{FMPLSLabel: "set_mpls_label", FMPLSTC: "set_mpls_tc", FMPLSTTL: "set_mpls_ttl"}

func formatAction(a *Action, names Names) string {
	if a.Kind < actionKinds && actionRows[a.Kind].format != nil {
		return actionRows[a.Kind].format(a, names)
	}
	return fmt.Sprintf("unknown(%d)", a.Kind)
}

func formatOutput(a *Action, names Names) string {
	text := formatPort(a.Port, names)
	if a.Port >= PortInPort && a.Port <= PortNone {
		return text
	}
	return "output:" + text
}

func formatModField(a *Action, names Names) string {
	if shimWord := shimWords[a.Dst.Field]; shimWord != "" {
		return shimWord + "(" + a.Value.decimal() + ")"
	}
	return modWords[a.Dst.Field] + ":" + formatField(a.Dst.Field, a.Value, WholeField(a.Dst.Field).Ones(), names)
}

func formatLoad(a *Action, _ Names) string {
	var words []string
	for _, l := range loadsOf(*a) {
		words = append(words, "load:"+l.Value.hex()+"->"+l.Dst.String())
	}
	return strings.Join(words, ",")
}

func formatMetadata(a *Action, _ Names) string {
	if a.Mask[1] == ^uint64(0) {
		return "write_metadata:" + a.Value.hex()
	}
	return "write_metadata:" + a.Value.hex() + "/" + a.Mask.hex()
}

func formatSetTunnel(a *Action, _ Names) string {
	if a.Wide {
		return "set_tunnel64:" + a.Value.hex()
	}
	return "set_tunnel:" + a.Value.hex()
}

func formatNote(a *Action, _ Names) string {
	return "note:" + strings.TrimSuffix(strings.ReplaceAll(fmt.Sprintf("% x", a.Text), " ", "."), ".")
}

// Ones returns a right-aligned mask as wide as the sub-field.
func (s Subfield) Ones() Value128 { return Ones(uint(s.Bits)) }

// formatSet returns the argument value[/mask] of a set_field action.
func formatSet(a *Action, names Names) string {
	if a.TLV != nil {
		return a.TLV.format()
	}
	switch a.Dst.Field {
	case FVLANVID:
		// The text includes the bit OFPVID_PRESENT, as in OpenFlow 1.2 and later.
		v := a.Value.Or(Value64(flowtable.VLANPresent))
		if a.Mask == a.Dst.Ones() {
			return v.decimal()
		}
		return v.hex() + "/" + a.Mask.Or(Value64(flowtable.VLANPresent)).hex()
	case FNwTOS:
		return a.Value.decimal()
	}
	return formatField(a.Dst.Field, a.Value, a.Mask, names)
}

// String returns the sub-field with its NXM or OXM name, as ovs-ofctl shows it.
func (s Subfield) String() string {
	f := &fields[s.Field]
	name := f.name
	if len(f.oxm) > 0 {
		name = f.oxm[0].name
	}
	switch {
	case s == WholeField(s.Field):
		return name + "[]"
	case s.Bits == 1:
		return fmt.Sprintf("%s[%d]", name, s.Offset)
	}
	return fmt.Sprintf("%s[%d..%d]", name, s.Offset, s.Offset+s.Bits-1)
}

func formatResubmit(a *Action, names Names) string {
	if a.Table == TableAll && !a.Tuple {
		return "resubmit:" + formatPort(a.Port, names)
	}
	port, table, option := "", "", ""
	if a.Port != PortInPort {
		port = formatPort(a.Port, names)
	}
	if a.Table != TableAll {
		table = strconv.Itoa(int(a.Table))
	}
	if a.Tuple {
		option = ",ct"
	}
	return "resubmit(" + port + "," + table + option + ")"
}

// FormatDatapathActions returns the text of a megaflow's actions. It uses the words of ovs-dpctl dump-flows,
// such as push_vlan(vid=5,pcp=0). Only Weft has the actions tunnel(template,vni) and drop(reason).
func FormatDatapathActions(actions []flowtable.Action, names Names) string {
	var texts []string
	for i := 0; i < len(actions); i++ {
		a := &actions[i]
		low := uint64(0)
		if a.Op == flowtable.OpCT {
			var r flowtable.CTRequest
			i += flowtable.ReadCT(actions[i:], &r) - 1
			texts = append(texts, formatCT(&r))
			continue
		}
		if a.Op == flowtable.OpTunOptions {
			var o flowtable.TunOptions
			i += flowtable.ReadTunOptions(actions[i:], &o) - 1
			texts = append(texts, fmt.Sprintf("set(tunnel(options=%x))", o.Raw()))
			continue
		}
		if a.Op == flowtable.OpLonger && i+2 < len(actions) {
			texts = append(texts, formatLonger(actions[i:]))
			i += 2
			continue
		}
		if a.Op == flowtable.OpSetIPv6Src || a.Op == flowtable.OpSetIPv6Dst || a.Op == flowtable.OpSetNDTarget {
			if i+1 < len(actions) {
				i++
				low = actions[i].U64
			}
		}
		texts = append(texts, formatDatapathAction(a, low, names))
	}
	if len(texts) == 0 {
		return "drop"
	}
	return strings.Join(texts, ",")
}

func formatDatapathAction(a *flowtable.Action, low uint64, names Names) string {
	num := Value64(uint64(a.U32))
	switch a.Op {
	case flowtable.OpOutput:
		return formatPort(a.U32, names)
	case flowtable.OpTunnel:
		return fmt.Sprintf("%stunnel(template=%d,vni=%d)", formatLimit(uint64(a.MaxInner())), a.U32, a.VNI())
	case flowtable.OpTunMeta:
		return fmt.Sprintf("set(tunnel(gbp_id=%d,gbp_flags=0x%x,flags=0x%x))",
			uint16(a.U64>>flowtable.TunGBPIDShift), uint8(a.U64>>flowtable.TunGBPFlagsShift), uint16(a.U64>>flowtable.TunFlagsShift))
	case flowtable.OpOutputTruncated:
		return formatLimit(a.U64) + formatPort(a.U32, names)
	case flowtable.OpDrop:
		return fmt.Sprintf("drop(%s)", packet.DropReason(a.U32))
	case flowtable.OpPushVLAN:
		return fmt.Sprintf("push_vlan(tpid=0x%04x,vid=%d,pcp=%d)", a.U16, a.U32&flowtable.VLANID, a.U32&flowtable.VLANPCP>>13)
	case flowtable.OpPopVLAN:
		return "pop_vlan"
	case flowtable.OpSetVLAN:
		return fmt.Sprintf("set(vlan(vid=%d,pcp=%d))", a.U32&flowtable.VLANID, a.U32&flowtable.VLANPCP>>13)
	case flowtable.OpSetEthDst:
		return "set(eth(dst=" + FormatEthernet(a.U64) + "))"
	case flowtable.OpSetEthSrc:
		return "set(eth(src=" + FormatEthernet(a.U64) + "))"
	case flowtable.OpSetIPv4Src:
		return "set(ipv4(src=" + formatAddr(num, 32) + "))"
	case flowtable.OpSetIPv4Dst:
		return "set(ipv4(dst=" + formatAddr(num, 32) + "))"
	case flowtable.OpSetIPv6Src:
		return "set(ipv6(src=" + formatAddr(Value128{a.U64, low}, 128) + "))"
	case flowtable.OpSetIPv6Dst:
		return "set(ipv6(dst=" + formatAddr(Value128{a.U64, low}, 128) + "))"
	case flowtable.OpSetTOS:
		return fmt.Sprintf("set(ip(tos=0x%x))", a.U32)
	case flowtable.OpSetTTL:
		return fmt.Sprintf("set(ip(ttl=%d))", a.U32)
	case flowtable.OpDecTTL:
		return "dec_ttl"
	case flowtable.OpCTClear:
		return "ct_clear"
	case flowtable.OpObserve:
		return fmt.Sprintf("observe(domain=%d,point=%d)", a.U64>>32, uint32(a.U64))
	case flowtable.OpSample:
		return formatSample(a)
	case flowtable.OpRecirc:
		return fmt.Sprintf("recirc(0x%x)", a.U32)
	case flowtable.OpController:
		return fmt.Sprintf("controller(max_len=%d)", a.U32)
	case flowtable.OpAnswer:
		return "answer(" + FormatEthernet(a.U64) + ")"
	case flowtable.OpMeter:
		return fmt.Sprintf("meter(%d)", a.U32)
	case flowtable.OpSetTpSrc:
		return fmt.Sprintf("set(tp(src=%d))", a.U32)
	case flowtable.OpSetTpDst:
		return fmt.Sprintf("set(tp(dst=%d))", a.U32)
	}
	return formatARPAndND(a, low)
}

// formatARPAndND returns the text of a datapath action that rewrites ARP, neighbour discovery, ICMP or the
// IPv6 flow label.
func formatARPAndND(a *flowtable.Action, low uint64) string {
	num := Value64(uint64(a.U32))
	switch a.Op {
	case flowtable.OpSetARPOp:
		return "set(arp(op=" + num.decimal() + "))"
	case flowtable.OpSetARPSpa:
		return "set(arp(sip=" + formatAddr(num, 32) + "))"
	case flowtable.OpSetARPTpa:
		return "set(arp(tip=" + formatAddr(num, 32) + "))"
	case flowtable.OpSetARPSha:
		return "set(arp(sha=" + FormatEthernet(a.U64) + "))"
	case flowtable.OpSetARPTha:
		return "set(arp(tha=" + FormatEthernet(a.U64) + "))"
	case flowtable.OpSetICMPType:
		return "set(icmp(type=" + num.decimal() + "))"
	case flowtable.OpSetICMPCode:
		return "set(icmp(code=" + num.decimal() + "))"
	case flowtable.OpSetNDTarget:
		return "set(nd(target=" + formatAddr(Value128{a.U64, low}, 128) + "))"
	case flowtable.OpSetNDSll:
		return "set(nd(sll=" + FormatEthernet(a.U64) + "))"
	case flowtable.OpSetNDTll:
		return "set(nd(tll=" + FormatEthernet(a.U64) + "))"
	case flowtable.OpPushMPLS:
		return fmt.Sprintf("push_mpls(eth_type=0x%04x,lse=0x%08x)", a.U16, a.U32)
	case flowtable.OpPopMPLS:
		return fmt.Sprintf("pop_mpls(eth_type=0x%04x)", a.U16)
	case flowtable.OpPushPBB:
		return fmt.Sprintf("push_pbb(itag=0x%08x)", a.U32)
	case flowtable.OpPopPBB:
		return "pop_pbb"
	case flowtable.OpSetShim:
		return fmt.Sprintf("set(shim=0x%08x)", a.U32)
	case flowtable.OpQueue:
		return fmt.Sprintf("queue(%d)", a.U32)
	case flowtable.OpEncapMPLS:
		return fmt.Sprintf("add_mpls(eth_type=0x%04x,lse=0x%08x),push_eth", a.U16, a.U32)
	case flowtable.OpDecapMPLS:
		return "pop_eth,pop_mpls(eth_type=0x6558)"
	case flowtable.OpEncapNSH, flowtable.OpPushNSH, flowtable.OpDecapNSH, flowtable.OpPopNSH,
		flowtable.OpSetNSHFlags, flowtable.OpSetNSHTTL, flowtable.OpSetNSHSPI, flowtable.OpSetNSHSI,
		flowtable.OpSetNSHC1, flowtable.OpSetNSHC2, flowtable.OpSetNSHC3, flowtable.OpSetNSHC4:
		return formatNSH(a)
	case flowtable.OpSetNDReserved:
		return "set(nd_ext(nd_reserved=" + num.decimal() + "))"
	case flowtable.OpSetNDOptionsType:
		return "set(nd_ext(nd_options_type=" + num.decimal() + "))"
	case flowtable.OpSetIPv6Label:
		return fmt.Sprintf("set(ipv6(label=0x%05x))", a.U32)
	}
	return fmt.Sprintf("op(%d)", a.Op)
}
