// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"math/rand/v2"
	"strings"
	"testing"

	"weft/flowtable"
	"weft/openflow/openflowtest"
)

// The random flows of openflowtest use every field and every action, except some that have their own tests,
// such as tracking and meters.
func TestRandomTablesHaveEverything(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	names := map[string]bool{}
	kinds := map[ActionKind]bool{}
	var note func(actions []Action)
	note = func(actions []Action) {
		for i := range actions {
			kinds[actions[i].Kind] = true
			note(actions[i].Sub)
		}
	}
	for range 5000 {
		text := openflowtest.MatchText(r)
		for _, word := range strings.Split(text, ",") {
			name, _, _ := strings.Cut(word, "=")
			names[name] = true
		}
		names["eth_type"] = names["eth_type"] || names["arp"]
		names["nw_proto"] = names["nw_proto"] || names["tcp"] // shorthands contain these fields
		mod, err := ParseFlowMod(text+",actions="+openflowtest.ActionsText(r, 0, 0), Add, WithTLVs(nil, testTLVs))
		if err == nil {
			note(mod.Actions)
		}
	}
	checkWrites(t)
	for id := FTunID; id < FTunMetadata; id++ {
		if f := &fields[id]; !names[f.name] && (f.alias == "" || !names[f.alias]) && !strings.HasPrefix(f.name, "ct_") {
			t.Errorf("no random table matches %s", f.name)
		}
	}
	// The tests of these actions are TestTrackedMegaflowsAreSound, TestMeters, TestPushAndPop, TestCheckLarger
	// and TestEncap.
	tracked := map[ActionKind]bool{ActCT: true, ActCTClear: true, ActMeter: true, ActPushMPLS: true, ActPopMPLS: true, ActPushPBB: true, ActPopPBB: true, ActCheckLarger: true, ActEncap: true, ActDecap: true}
	for kind := ActNone + 1; kind < actionKinds; kind++ {
		if !kinds[kind] && !tracked[kind] {
			t.Errorf("no random table has action %s", FormatActions([]Action{{Kind: kind, Controller: &Controller{}, Learn: &LearnSpec{}, CT: &CTSpec{}}}, nil))
		}
	}
}

// checkWrites fails the test if no action in ActionTexts writes one of the header fields.
func checkWrites(t *testing.T) {
	t.Helper()
	var written Flow
	for _, text := range openflowtest.ActionTexts {
		for _, context := range contexts {
			mod, err := ParseFlowMod(strings.TrimPrefix(context+",actions="+text, ","), Add, WithTLVs(nil, testTLVs))
			if err == nil && len(mod.Actions) > 0 && mod.Actions[0].Dst.Bits > 0 && !mod.Actions[0].Dst.Field.IsTLV() {
				word, hi, lo := WholeField(mod.Actions[0].Dst.Field).Mask()
				written[word] |= hi
				if lo != 0 {
					written[word+1] |= lo
				}
			}
		}
	}
	for id := FTunID; id < FTunMetadata; id++ {
		f := &fields[id]
		word, hi, _ := WholeField(id).Mask()
		header := word < flowtable.WTunID || word >= flowtable.WARPSha && word < flowtable.WCT
		if header && !f.readOnly && written[word]&hi == 0 {
			t.Errorf("no text of openflowtest.ActionTexts writes %s", id)
		}
	}
}
