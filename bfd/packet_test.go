// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// asLayer returns p as gopacket's layer.
func asLayer(p *Packet) *layers.BFD {
	return &layers.BFD{
		Version: 1, Diagnostic: layers.BFDDiagnostic(p.Diag), State: layers.BFDState(p.State),
		Poll: p.Flags&flagPoll != 0, Final: p.Flags&flagFinal != 0, ControlPlaneIndependent: p.Flags&flagCPI != 0,
		AuthPresent: p.Flags&flagAuth != 0, Demand: p.Flags&flagDemand != 0, Multipoint: p.Flags&flagMultipoint != 0,
		DetectMultiplier: layers.BFDDetectMultiplier(p.Multiplier),
		MyDiscriminator:  layers.BFDDiscriminator(p.Mine), YourDiscriminator: layers.BFDDiscriminator(p.Yours),
		DesiredMinTxInterval: layers.BFDTimeInterval(p.MinTx), RequiredMinRxInterval: layers.BFDTimeInterval(p.MinRx),
	}
}

// Parse and gopacket agree about every packet that Parse accepts. Parse refuses no packet that RFC
// 5880 section 6.8.6 accepts without authentication. Put encodes what Parse decodes.
func FuzzParse(f *testing.F) {
	for _, p := range []Packet{{State: Up, Multiplier: 3, Mine: 1, Yours: 2, MinTx: 3, MinRx: 4, Flags: flagCPI | flagPoll}, {State: Down, Diag: 1, Multiplier: 1, Mine: 9}} {
		var b [Length]byte
		p.Put(b[:])
		f.Add(b[:])
		f.Add(append(b[:], 0))
		f.Add(b[:Length-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := Parse(b)
		var want layers.BFD
		if len(b) > 1 && b[1]&flagAuth != 0 { // gopacket panics on some of these
			var s Session
			s.Begin(keyed(KeyedSHA1, "secret"), mine, 1)
			if ok && s.Authentic(b, 1) {
				t.Fatalf("guessed a sum: % x", b)
			}
			return
		}
		if len(b) < Length || int(b[3]) > len(b) || want.DecodeFromBytes(b[:max(int(b[3]), 0)], gopacket.NilDecodeFeedback) != nil {
			if ok {
				t.Fatalf("accepted % x", b)
			}
			return
		}
		valid := want.Version == 1 && want.DetectMultiplier != 0 && !want.Multipoint && want.MyDiscriminator != 0 &&
			(want.YourDiscriminator != 0 || want.State <= layers.BFDStateDown)
		if ok != valid {
			t.Fatalf("accepted %v, want %v: % x", ok, valid, b)
		}
		if !ok {
			return
		}
		layer := asLayer(&p)
		layer.RequiredMinEchoRxInterval, want.BaseLayer = want.RequiredMinEchoRxInterval, layer.BaseLayer
		if diff := cmp.Diff(*layer, want); diff != "" {
			t.Fatal(diff)
		}
		var own [Length]byte
		p.Put(own[:])
		layer.RequiredMinEchoRxInterval = 0
		buf := gopacket.NewSerializeBuffer()
		if err := layer.SerializeTo(buf, gopacket.SerializeOptions{}); err != nil || string(buf.Bytes()) != string(own[:]) {
			t.Fatalf("% x, want % x: %v", own, buf.Bytes(), err)
		}
	})
}
