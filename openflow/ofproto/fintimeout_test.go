// SPDX-License-Identifier: Apache-2.0

package ofproto

import (
	"testing"
)

func TestReducedTimeouts(t *testing.T) {
	for _, c := range []struct{ old, limit, want uint16 }{{0, 0, 0}, {0, 5, 5}, {9, 0, 9}, {9, 5, 5}, {3, 5, 3}, {5, 5, 5}} {
		if got := reduced(c.old, c.limit); got != c.want {
			t.Errorf("timeout %d with limit %d gives %d, want %d", c.old, c.limit, got, c.want)
		}
	}
}
