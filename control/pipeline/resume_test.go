// SPDX-License-Identifier: Apache-2.0

package pipeline

import "testing"

// Only the pipeline that has sealed a continuation opens it, and only unchanged.
func TestSealedContinuation(t *testing.T) {
	pl, other := &Pipeline{seal: newSealKey()}, &Pipeline{seal: newSealKey()}
	const text = `{"rest":[{"actions":"output:1"}]}`
	sealed := pl.Seal(7, text)
	if port, got, ok := pl.seal.open(sealed); !ok || port != 7 || got != text || len(sealed)%8 != 0 {
		t.Fatalf("opens as %d, %q, %v", port, got, ok)
	}
	if _, _, ok := other.seal.open(sealed); ok {
		t.Error("another process opens the continuation")
	}
	n := sealHeader + sealPort + sealCode + len(text) // padding follows
	for i := range n {
		changed := append([]byte(nil), sealed...)
		changed[i] ^= 1
		if _, _, ok := pl.seal.open(changed); ok {
			t.Errorf("opens with byte %d changed", i)
		}
		if _, _, ok := pl.seal.open(sealed[:i]); ok {
			t.Errorf("opens with %d bytes", i)
		}
	}
}
