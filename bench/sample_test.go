// SPDX-License-Identifier: Apache-2.0

package bench

import "testing"

func TestSample(t *testing.T) {
	s := Sample{3, 1, 2}
	if s.Median() != 2 || s.Min() != 1 || s.Max() != 3 {
		t.Fatalf("median %v, min %v, max %v", s.Median(), s.Min(), s.Max())
	}
	if m := (Sample{4, 1, 2, 3}).Median(); m != 2.5 {
		t.Fatalf("median of four: %v", m)
	}
	if r := s.Ratio(Sample{1, 2, 0}); len(r) != 2 || r[0] != 3 || r[1] != 0.5 {
		t.Fatalf("ratio: %v", r)
	}
	if (Sample{}).Median() != 0 || (Sample{}).Max() != 0 {
		t.Fatal("an empty sample is not 0")
	}
}
