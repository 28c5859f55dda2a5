// SPDX-License-Identifier: Apache-2.0

package ports

import "testing"

// A port that is deleted and added again gets its old number. Ports with other names
// get other numbers.
func TestNumbersStayWithNames(t *testing.T) {
	ports, _ := newTestPorts(t)
	ports.vxlanPorts(t, 3)
	if err := ports.Delete("p2"); err != nil {
		t.Fatal(err)
	}
	add := func(name, vni string) uint32 {
		t.Helper()
		p, err := ports.Add(name, []string{"type=vxlan", "vni=" + vni, "remote=192.0.2.1"})
		if err != nil {
			t.Fatal(err)
		}
		return p.Number
	}
	if n := add("other", "20"); n != 4 {
		t.Errorf("a new name has number %d, want 4: 2 is still meant by flows that named p2", n)
	}
	if n := add("p2", "21"); n != 2 {
		t.Errorf("p2 has number %d after it was deleted and added again, want 2", n)
	}
}
