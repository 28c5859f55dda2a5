// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strconv"
	"strings"

	"weft/control/usererr"
	"weft/openflow/xlate"
)

// vlanOptions are the options for a port's VLANs, which the action normal uses. Names and values are
// those of ovs-vswitchd.conf.db(5). A set of VLANs is a list of numbers and ranges.
var vlanOptions = optionTable{
	"tag":          {check: numberIn(0, maxVID)},
	"trunks":       {check: vlanSetWords},
	"vlan_mode":    {check: oneOf(vlanModes...)},
	"cvlans":       {check: vlanSetWords},
	"qinq-ethtype": {check: oneOf("802.1ad", "802.1q")},
}

const maxVID = 4095

// TPIDs of the outer tag that a port with vlan_mode=dot1q-tunnel pushes.
const (
	tpidCustomer = 0x8100
	tpidService  = 0x88a8
)

// vlanModes are the values of vlan_mode=, in the order of package xlate's VLAN modes.
var vlanModes = []string{"trunk", "access", "native-tagged", "native-untagged", "dot1q-tunnel"}

func vlanSetWords(value string) string {
	if _, ok := parseVLANs(value); !ok {
		return "VLANs from 0 to 4095, as in 1,10-20"
	}
	return ""
}

func parseVLANs(value string) (*xlate.VLANSet, bool) {
	set := new(xlate.VLANSet)
	for word := range strings.SplitSeq(value, ",") {
		first, last, isRange := strings.Cut(word, "-")
		if !isRange {
			last = first
		}
		low, errLow := strconv.ParseUint(first, 10, 16)
		high, errHigh := strconv.ParseUint(last, 10, 16)
		if errLow != nil || errHigh != nil || high > maxVID || low > high {
			return nil, false
		}
		for vid := low; vid <= high; vid++ {
			set.Add(uint16(vid))
		}
	}
	return set, true
}

// vlanMode returns the mode that the options select. As in Open vSwitch, tag= without
// vlan_mode= makes an access port.
func vlanMode(values map[string]string) xlate.VLANMode {
	for i, word := range vlanModes {
		if values["vlan_mode"] == word {
			return xlate.VLANMode(i)
		}
	}
	if values["tag"] != "" {
		return xlate.VLANAccess
	}
	return xlate.VLANTrunk
}

// fillVLANs stores the port's VLANs in "info". It refuses options that have no effect in the port's
// mode.
func fillVLANs(info *xlate.PortInfo, values map[string]string) error {
	given := false
	for key := range vlanOptions {
		given = given || values[key] != ""
	}
	if !given {
		return nil
	}
	mode := vlanMode(values)
	word := "vlan_mode=" + vlanModes[mode]
	unused := map[string]bool{
		"tag": mode == xlate.VLANTrunk, "trunks": mode == xlate.VLANAccess || mode == xlate.VLANTunnel,
		"cvlans": mode != xlate.VLANTunnel, "qinq-ethtype": mode != xlate.VLANTunnel,
	}
	for _, key := range []string{"tag", "trunks", "cvlans", "qinq-ethtype"} {
		if unused[key] && values[key] != "" {
			return usererr.Errorf("%s=%s: a port with %s has no %s; expected another vlan_mode", key, values[key], word, key)
		}
	}
	if mode != xlate.VLANTrunk && values["tag"] == "" {
		return usererr.Errorf("tag= is missing; %s needs it", word)
	}
	vid, _ := strconv.ParseUint(values["tag"], 10, 16) // valid if present; absent: 0
	p := &xlate.PortVLANs{Mode: mode, VID: uint16(vid), TPID: tpidService}
	if values["qinq-ethtype"] == "802.1q" {
		p.TPID = tpidCustomer
	}
	if values["trunks"] != "" {
		p.Trunks, _ = parseVLANs(values["trunks"])
	}
	if values["cvlans"] != "" {
		p.CVLANs, _ = parseVLANs(values["cvlans"])
	}
	if native := mode == xlate.VLANNativeTagged || mode == xlate.VLANNativeUntagged; native && vid != 0 {
		// Frames without a tag belong to VLAN vid, the native VLAN, and not to VLAN 0. So the port does
		// not carry VLAN 0.
		if p.Trunks == nil {
			p.Trunks, _ = parseVLANs("0-4095")
		}
		p.Trunks.Add(p.VID)
		p.Trunks.Remove(0)
	}
	info.VLANs = p
	return nil
}
