// SPDX-License-Identifier: Apache-2.0

package workers

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"reflect"
	"sync"

	"weft/datapath"
	"weft/packet"
)

// layoutVersion changes if a value in the workers' memory gets another meaning while all
// types stay.
const layoutVersion = 1

// Layout returns an identifier of the layout of the workers' memory: of all types in it,
// and of the drop reasons, which index counters. Two builds with the same identifier can
// read each other's counters and megaflows.
var Layout = sync.OnceValue(func() string {
	h := sha256.New()
	fmt.Fprintln(h, layoutVersion)
	for reason := range packet.DropReason(packet.DropReasons) {
		fmt.Fprintln(h, reason)
	}
	describe(h, reflect.TypeFor[datapath.Shared](), map[reflect.Type]bool{})
	return hex.EncodeToString(h.Sum(nil)[:16])
})

// describe writes names, sizes and fields of t and of the types in it. known has the types
// that were written before.
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
