// SPDX-License-Identifier: Apache-2.0

package cpu

import (
	"sync/atomic"
	"testing"
)

func TestStoreRelease(t *testing.T) {
	var a [3]atomic.Uint64
	const v = 1<<63 | 1<<32 | 1
	if StoreRelease(&a[1], v); a[1].Load() != v || a[0].Load()|a[2].Load() != 0 {
		t.Errorf("%#x between %#x and %#x", a[1].Load(), a[0].Load(), a[2].Load())
	}
}
