// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"fmt"
	"io"
	"reflect"
)

// Describe writes the name, size and fields of t, and of all types within t, to w. Two builds that
// write the same text can share memory of type t, if its values have the same meaning for both.
func Describe(w io.Writer, t reflect.Type) { describe(w, t, map[reflect.Type]bool{}) }

// describe writes a type and the types within it. knownTypes has the types whose fields were written
// before.
func describe(w io.Writer, t reflect.Type, knownTypes map[reflect.Type]bool) {
	fmt.Fprintln(w, t, t.Kind(), t.Size())
	if knownTypes[t] {
		return
	}
	knownTypes[t] = true
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		describe(w, t.Elem(), knownTypes)
	case reflect.Struct:
		for f := range t.Fields() {
			fmt.Fprintln(w, f.Name, f.Offset)
			describe(w, f.Type, knownTypes)
		}
	}
}
