// SPDX-License-Identifier: Apache-2.0

package testnet

import (
	"net"
	"os"
	"strings"
	"testing"
)

func TestNamespaceIsEnteredLeftAndRemoved(t *testing.T) {
	NeedsRoot(t, "makes network namespaces")
	var name string
	t.Run("in", func(t *testing.T) {
		a, b := New(t), New(t)
		name = a.Name
		Join(a, "left", b, "right")
		a.Do(func() {
			if _, err := net.InterfaceByName("left"); err != nil {
				t.Error(err)
			}
		})
		if _, err := net.InterfaceByName("left"); err == nil {
			t.Error("the namespace was not left")
		}
		if out := b.Exec("ip", "-o", "link", "show", "right"); !strings.Contains(out, "LOWER_UP") {
			t.Errorf("right is not up: %s", out)
		}
	})
	if _, err := os.Stat("/run/netns/" + name); name == "" || err == nil {
		t.Errorf("namespace %q is still there", name)
	}
}
