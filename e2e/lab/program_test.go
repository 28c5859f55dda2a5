package lab

import "testing"

// What would end a test becomes the error of the function that catches it, and no
// other panic does.
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
