package iovec

import "testing"

// Batches of a queue on which frames wait as told: what arrives before each batch,
// and what each is to take. A batch that may not read on leaves the rest.
func TestPace(t *testing.T) {
	var p Pace
	waiting := 0
	for i, step := range []struct{ arrive, take int }{
		{0, 0},
		{1, 1}, {0, 0}, // alone, and the end is seen afterwards
		{1, 1}, {0, 0},
		{3, 1}, {0, 2}, // the rest is taken at once
		{5, 5}, {7, 7}, // and so is what comes in quantity
		{1, 1}, // the end was seen
		{2, 1}, {0, 1}, {4, 1}, {0, 3},
		{0, 0}, {2, 1},
	} {
		waiting += step.arrive
		took := 0
		for p.Begin(); p.More(); {
			if waiting == 0 {
				p.Empty()
				break
			}
			waiting--
			took++
		}
		if took != step.take {
			t.Errorf("batch %d took %d, want %d", i, took, step.take)
		}
	}
}
