// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// The bill of this test's binary lists the modules that are linked into it. It has the same bytes each
// time.
func TestBill(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := run(out, "1.2.3", []string{self}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two bills differ")
	}
	var b cdx.BOM
	if err := cdx.NewBOMDecoder(&first, cdx.BOMFileFormatJSON).Decode(&b); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, c := range *b.Components {
		found[c.Name] = c.PackageURL
	}
	if b.Metadata.Component.Version != "1.2.3" || !strings.HasPrefix(found["std"], "pkg:golang/std@1.") ||
		!strings.HasPrefix(found["github.com/CycloneDX/cyclonedx-go"], "pkg:golang/github.com/CycloneDX/cyclonedx-go@v") {
		t.Errorf("%+v: %v", b.Metadata.Component, found)
	}
	if err := run(&second, "1", []string{"/nosuchfile"}); err == nil {
		t.Error("a missing program is no error")
	}
}
