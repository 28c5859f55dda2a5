// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"log/slog"
	"testing"
	"time"

	"weft/central/store"
)

// The release of a binding waits for other releases, and for the deletion of its port.
// A new binding does not wait for them.
func TestReleasesWait(t *testing.T) {
	b := newBinder(nil, nil, slog.New(slog.DiscardHandler))
	release := func(port string) job {
		return job{request: store.BindRequest{Port: port, Release: true}}
	}
	for _, port := range []string{"p1", "p2", "p3"} {
		b.add(release(port))
	}
	due := b.jobs["p1"].due
	time.Sleep(time.Millisecond)
	b.add(release("p1"))
	if again := b.jobs["p1"].due; again != due {
		t.Errorf("a release that is asked for again is due %s later", again.Sub(due))
	}
	b.drop("p2")
	b.add(job{request: store.BindRequest{Port: "p4"}})
	b.drop("p4") // only releases are dropped
	early := due.Add(-time.Millisecond)
	if first, _ := b.take(early); len(first) != 1 || first[0].request.Port != "p4" {
		t.Errorf("first %+v, expected only the binding of p4", first)
	}
	if batch, wait := b.take(early); len(batch) != 0 || wait != time.Millisecond {
		t.Errorf("then %+v, and further ones in %s", batch, wait)
	}
	if batch, _ := b.take(due.Add(time.Minute)); len(batch) != 2 {
		t.Errorf("later %+v, expected the releases of p1 and p3", batch)
	}
}
