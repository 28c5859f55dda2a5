// SPDX-License-Identifier: Apache-2.0

package lab

import "testing"

// Caught turns a failure of the lab into an error. It does not recover from other
// panics.
func TestCaught(t *testing.T) {
	fail := func(f func()) (err error) {
		defer Caught(&err)
		f()
		return nil
	}
	if err := fail(func() {}); err != nil {
		t.Errorf("nothing happened: %v", err)
	}
	if err := fail(func() { Program{}.Fatalf("no %s", "host") }); err == nil || err.Error() != "no host" {
		t.Errorf("Fatalf: %v", err)
	}
	defer func() {
		if recover() != "another" {
			t.Error("another panic was caught")
		}
	}()
	_ = fail(func() { panic("another") })
}
