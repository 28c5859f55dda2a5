// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// OVSVersion is written to Open_vSwitch.ovs_version, from which clients derive what a switch can do. It
// is the version of Open vSwitch whose tools and columns the tests compare with.
const OVSVersion = "3.1.0-weft"

// datapathTypes are the accepted values of Bridge.datapath_type. They have no effect, because all
// bridges share one data path.
var datapathTypes = []string{"netdev", "system"}

// capabilities are written to Datapath.capabilities. Clients such as ovn-controller choose the flows
// that they add by them. TestCapabilities compares them with the flows that the switch accepts.
var capabilities = map[string]string{
	"add_mpls":             "true",  // encap(mpls) below and above Ethernet, openflow/xlate/encap.go
	"check_pkt_len":        "true",  // openflow/checklarger.go
	"clone":                "true",  // openflow/xlate restores the frame after the actions in clone
	"ct_clear":             "true",  // openflow/xlate clears the state in the translation
	"ct_eventmask":         "false", // weft monitor shows events of connections, without masks
	"ct_flush":             "true",  // NXT_CT_FLUSH, openflow/ofp/ctflush.go
	"ct_label":             "true",  // conntrack's entries have 128 bits of label
	"ct_mark":              "true",
	"ct_orig_tuple":        "true",
	"ct_orig_tuple6":       "true",
	"ct_state":             "true",
	"ct_state_nat":         "true",
	"ct_timeout":           "true", // rows of CT_Timeout_Policy set the timeouts of a zone
	"ct_zero_snat":         "true", // conntrack/nat.go changes the port if the reply tuple is in use
	"ct_zone":              "true",
	"explicit_drop_action": "true",  // a megaflow without actions drops and counts
	"lb_output_action":     "false", // each connection through a bond with balance-tcp has a megaflow instead
	"masked_set_action":    "true",  // package packet rewrites single bits of fields
	"max_hash_alg":         "0",
	"max_vlan_headers":     "2",    // flowtable.Key has two tags
	"nd_ext":               "true", // fields nd_reserved and nd_options_type
	"recirc":               "true", // docs/decisions/0014
	"sample_nesting":       "0",    // a sample contains no actions, so none is nested
	"tnl_push_pop":         "true", // package tunnel writes and removes outer headers
	"trunc":                "true", // output(max_len=)
	"ufid":                 "true", // OVS means flows with unique IDs; megaflows have slots
}

// ifaceTypes are the accepted values of Interface.type, written to Open_vSwitch.iface_types.
var ifaceTypes = slices.Sorted(maps.Keys(kinds))

// features are the capabilities that dpif/show-dp-features prints, in Open vSwitch's order and
// words.
var features = []struct{ capability, words string }{
	{"masked_set_action", "Masked set action"},
	{"tnl_push_pop", "Tunnel push pop"},
	{"ufid", "Ufid"},
	{"trunc", "Truncate action"},
	{"sample_nesting", "Sample nesting"},
	{"ct_eventmask", "Conntrack eventmask"},
	{"ct_clear", "Conntrack clear"},
	{"max_hash_alg", "Max dp_hash algorithm"},
	{"check_pkt_len", "Check pkt length action"},
	{"ct_timeout", "Conntrack timeout policy"},
	{"explicit_drop_action", "Explicit Drop action"},
	{"lb_output_action", "Optimized Balance TCP mode"},
	{"ct_zero_snat", "Conntrack all-zero IP SNAT"},
	{"add_mpls", "MPLS Label add"},
	{"max_vlan_headers", "Max VLAN headers"},
	{"recirc", "Recirc"},
	{"ct_state", "CT state"},
	{"ct_zone", "CT zone"},
	{"ct_mark", "CT mark"},
	{"ct_label", "CT label"},
	{"ct_state_nat", "CT state NAT"},
	{"ct_orig_tuple", "CT orig tuple"},
	{"ct_orig_tuple6", "CT orig tuple for IPv6"},
	{"nd_ext", "IPv6 ND Extension"},
}

// Features returns the text that the command dpif/show-dp-features prints.
func Features() string {
	var out strings.Builder
	for _, f := range features {
		word := capabilities[f.capability]
		switch word {
		case "true":
			word = "Yes"
		case "false":
			word = "No"
		}
		fmt.Fprintf(&out, "%s: %s\n", f.words, word)
	}
	return out.String()
}

// HasFeature reports whether the switch has a capability of this name, with whatever value.
func HasFeature(name string) bool {
	_, has := capabilities[name]
	return has
}

// logCapabilities logs capabilities in the words of ovs-vswitchd, for tools that search its log for
// them.
func (c *Client) logCapabilities() {
	c.log.Info("VLAN header stack length probed as " + capabilities["max_vlan_headers"])
	for _, f := range []struct{ capability, words string }{
		{"recirc", "recirculation"}, {"masked_set_action", "masked set action"}, {"ufid", "unique flow ids"}, {"ct_clear", "ct_clear action"},
		{"trunc", "truncate action"}, {"explicit_drop_action", "explicit drop action"}, {"ct_zero_snat", "ct_zero_snat"},
		{"ct_timeout", "timeout policy in conntrack action"}, {"lb_output_action", "lb_output action"},
	} {
		if capabilities[f.capability] == "true" {
			c.log.Info("Datapath supports " + f.words)
		} else {
			c.log.Info("Datapath does not support " + f.words)
		}
	}
}
