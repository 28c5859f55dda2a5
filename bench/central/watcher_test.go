// SPDX-License-Identifier: Apache-2.0

package central

import (
	"testing"
	"time"
)

// In quantiles, ports that never answered count as very late.
func TestQuantilesCountWhatNeverCame(t *testing.T) {
	list := WithNever([]time.Duration{3, 1, 2}, 2)
	for share, want := range map[float64]time.Duration{0: 1, 0.5: 3, 0.7: never, 1: never} {
		if got := Quantile(list, share); got != want {
			t.Errorf("quantile %v: %s, expected %s", share, got, want)
		}
	}
	if got := Quantile(WithNever(nil, 1), 0.5); got != never {
		t.Errorf("the quantile of one port that never came: %s", got)
	}
}
