// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"hash/fnv"
	"reflect"
	"testing"

	"weft/internal/shm"
)

// fingerprint is a hash of the memory layout whose magic is layoutOf.
const layoutOf, fingerprint = uint64(0x7765667463740008), "1d04b660e4df720d"

// A build takes over the table of an earlier build if both have the same constant magic. Whoever changes the
// layout must therefore increment magic, and set layoutOf and fingerprint. Only fingerprint must be set after
// a type or field was renamed. The same holds if a word of padding became a field whose value 0 means that
// the table works as in earlier builds.
func TestMagicNamesTheLayout(t *testing.T) {
	h := fnv.New64a()
	shm.Describe(h, reflect.TypeFor[Memory]())
	var l shm.Layout
	CarveMemory(&l, Sizes{Connections: 64})
	fmt.Fprintln(h, l.Off)
	if got := fmt.Sprintf("%x", h.Sum64()); got != fingerprint || magic != layoutOf {
		t.Errorf("layout %s with magic %#x; want %s with %#x: see this test's comment", got, uint64(magic), fingerprint, layoutOf)
	}
}
