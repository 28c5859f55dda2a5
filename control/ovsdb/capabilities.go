// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"maps"
	"slices"
)

// OVSVersion is written to Open_vSwitch.ovs_version, from which clients derive features: the
// version whose tools and columns the tests compare with.
const OVSVersion = "3.1.0-weft"

// datapathTypes are the values of Bridge.datapath_type, which have no effect here: all
// bridges share one data path.
var datapathTypes = []string{"netdev", "system"}

// capabilities are written to Datapath.capabilities. Clients such as ovn-controller choose
// flows by them.
var capabilities = map[string]string{
	"add_mpls":             "false", // package openflow parses encap(mpls), but the engine has no such action below Ethernet
	"check_pkt_len":        "true",  // openflow/checklarger.go
	"ct_clear":             "true",  // openflow/xlate clears the state in the translation
	"ct_eventmask":         "false", // events of connections go to weft monitor, without masks
	"ct_label":             "true",  // conntrack's entries have 128 bits of label
	"ct_mark":              "true",
	"ct_orig_tuple":        "true",
	"ct_orig_tuple6":       "true",
	"ct_state":             "true",
	"ct_state_nat":         "true",
	"ct_timeout":           "false", // timeouts are settings of a zone, see weft ct-set-timeout, not of a ct action
	"ct_zero_snat":         "false", // an all-zero address of nat(src) is no request to look for port conflicts
	"ct_zone":              "true",
	"explicit_drop_action": "true",  // a megaflow without actions drops and counts
	"lb_output_action":     "false", // there are no bonds
	"masked_set_action":    "true",  // package packet rewrites under masks
	"max_hash_alg":         "0",
	"max_vlan_headers":     "2",    // flowtable.Key has two tags
	"nd_ext":               "true", // fields nd_reserved and nd_options_type
	"recirc":               "true", // decisions/0014
	"sample_nesting":       "0",    // there is no action sample
	"tnl_push_pop":         "true", // package tunnel writes and takes off outer headers
	"trunc":                "true", // output(max_len=)
	"ufid":                 "true", // megaflows have slots instead of being named by their keys
}

// ifaceTypes are written to Open_vSwitch.iface_types.
var ifaceTypes = slices.Sorted(maps.Keys(kinds))
