// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"hash/fnv"
	"io"
	"reflect"
	"testing"

	"weft/internal/shm"
)

// layoutOf is the fingerprint of the layout that magic names.
const layoutOf, fingerprint = uint64(0x7765667463740008), "42b777a23fcf5a84"

// The next build takes over a table with its own magic, so magic changes with the layout.
// After a change of the layout, increment magic and set layoutOf and fingerprint. A new
// name of a type or field changes only the fingerprint.
func TestMagicNamesTheLayout(t *testing.T) {
	h := fnv.New64a()
	describe(h, reflect.TypeFor[Memory](), map[reflect.Type]bool{})
	var l shm.Layout
	CarveMemory(&l, Sizes{Connections: 64})
	fmt.Fprintln(h, l.Off)
	if got := fmt.Sprintf("%x", h.Sum64()); got != fingerprint || magic != layoutOf {
		t.Errorf("layout %s with magic %#x; want %s with %#x: see this test's comment", got, uint64(magic), fingerprint, layoutOf)
	}
}

// describe writes sizes and fields of t and of the types in it.
func describe(w io.Writer, t reflect.Type, known map[reflect.Type]bool) {
	fmt.Fprintln(w, t, t.Kind(), t.Size())
	if known[t] {
		return
	}
	known[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		describe(w, t.Elem(), known)
	case reflect.Struct:
		for f := range t.Fields() {
			fmt.Fprintln(w, f.Name, f.Offset)
			describe(w, f.Type, known)
		}
	}
}
