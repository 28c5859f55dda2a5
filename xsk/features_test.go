// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"testing"

	"weft/internal/testnet"
)

// A veth does not offer zero-copy mode, and the kernel reports this.
func TestOffersZeroCopy(t *testing.T) {
	n, other := testnet.New(t), testnet.New(t)
	testnet.Join(n, "u0", other, "u0")
	n.Do(func() {
		if yes, err := OffersZeroCopy("u0"); yes || err != nil {
			t.Errorf("OffersZeroCopy returned %v, %v for a veth", yes, err)
		}
		if _, err := OffersZeroCopy("none0"); err == nil {
			t.Error("a missing device has features")
		}
	})
}
