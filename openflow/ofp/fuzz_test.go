// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"slices"
	"strings"
	"testing"

	of "weft/openflow"
	"weft/openflow/ofp/ofptest"
)

// decode decodes a message of any kind, in the way a switch does.
func decode(r *Request) (err error) {
	switch r.Kind {
	case FlowMod, NXFlowMod:
		_, err = DecodeFlowMod(r, true)
	case FlowStats, NXFlowStats, AggregateStats, NXAggregateStats:
		_, err = DecodeFlowSelection(r)
	case GroupMod, NXGroupMod:
		_, err = DecodeGroupMod(r)
	case MeterMod:
		_, err = DecodeMeterMod(r)
	case PortMod:
		_, err = DecodePortMod(r)
	case TableMod:
		_, err = DecodeTableMod(r)
	case PacketOut:
		_, err = DecodePacketOut(r)
	case PortStats, PortDesc:
		_, _, err = DecodePortSelection(r)
	case GroupStats, GroupDesc:
		_, err = DecodeGroupSelection(r)
	case MeterStats, MeterConfig:
		_, err = DecodeMeterSelection(r)
	case RoleRequest, NXRoleRequest:
		_, _, _, err = DecodeRole(r)
	case SetAsync, NXSetAsync, NXSetAsync2:
		_, err = DecodeSetAsync(r, DefaultAsync(r.Version))
	case BundleControl, BundleAdd:
		_, err = DecodeBundle(r)
	case FlowMonitor, NXFlowMonitor:
		_, err = DecodeMonitors(r)
	case FlowMonitorCancel:
		_, err = DecodeMonitorCancel(r)
	case CTFlush:
		_, err = DecodeCTFlush(r)
	case SetConfig:
		_, err = DecodeSwitchConfig(r)
	}
	return err
}

// For a message with wrong lengths or values, decoding returns an error that an error
// message can carry. It never panics.
func FuzzMessages(f *testing.F) {
	mods, _ := corpus(f)
	for _, v := range allVersions {
		for i := range mods {
			f.Add(ofptest.FlowMod(v, 1, &mods[i]))
		}
		for kind := range uint8(40) {
			f.Add(End(zeros(Begin(nil, v, kind, 7), 64), 0))
		}
		_, reply := multipartType(v)
		for number := range uint16(20) {
			b := be.AppendUint16(Begin(nil, v, reply-1, 7), number)
			f.Add(End(zeros(b, 80), 0))
		}
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		if len(m) < HeaderLen {
			return
		}
		be.PutUint16(m[2:], uint16(len(m)))
		Negotiate(m, nil)
		r, err := Identify(m)
		if err == nil {
			err = decode(&r)
		}
		if err == nil {
			return
		}
		e, ok := err.(*of.CodedError)
		if !ok || e.Code == of.ErrNone || e.Text == "" {
			t.Fatalf("%v has no code", err)
		}
		AppendError(nil, r.Version, e.Code, m)
	})
}

// ovs-ofctl decodes each error message of each version to the error's name.
func TestErrorsAreOVSs(t *testing.T) {
	for _, v := range allVersions {
		request := ofptest.Message(v, TypeEchoRequest, 5)
		var messages [][]byte
		for code := of.ErrNone + 1; code < of.ErrorCodes; code++ {
			if errorNumbers[code] == nil {
				t.Errorf("error %d has no number", code)
			}
			messages = append(messages, AppendError(nil, v, code, request))
		}
		texts := slices.DeleteFunc(printed(t, messages...), func(text string) bool { return strings.HasPrefix(text, "OFPT_ECHO") })
		if len(texts) != len(messages) {
			t.Fatalf("version %d: %d texts of %d errors", v, len(texts), len(messages))
		}
		for i, text := range texts {
			if !strings.Contains(text, "OFP") || strings.Contains(text, "***") {
				t.Errorf("version %d, error %d: %s", v, i+1, text)
			}
		}
	}
}
