// SPDX-License-Identifier: Apache-2.0

package store

import "testing"

// BenchmarkPort declares and deletes a port, in two requests.
func BenchmarkPort(b *testing.B) {
	s := testMember(b).Store()
	apply(b, s, setNet("n", 7))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		apply(b, s, setPort(port("p", "n", n)))
		apply(b, s, deletePort("p"))
	}
}
