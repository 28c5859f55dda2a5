// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"testing"
	"time"

	"weft/central/wire"
)

func bindTo(port, host string, last byte, expected int64) BindRequest {
	return BindRequest{Port: port, Host: host, Endpoint: []byte{192, 0, 2, last}, Expected: expected}
}

func bind(t *testing.T, s *Store, r BindRequest) int64 {
	t.Helper()
	got := s.Bind(t.Context(), []BindRequest{r})
	if len(got) != 1 || got[0].Err != nil {
		t.Fatalf("%+v: %v", r, got)
	}
	return got[0].Generation
}

func bindRefused(t *testing.T, s *Store, words string, r BindRequest) {
	t.Helper()
	wantRefusal(t, s.Bind(t.Context(), []BindRequest{r})[0].Err, words)
}

func TestBind(t *testing.T) {
	s := testMember(t).Store()
	pinned := port("p2", "blue", 2)
	pinned.Host = "h1"
	apply(t, s, setNet("blue", 1), setHost("h1", 1), setHost("h2", 2), setPort(port("p1", "blue", 1)), setPort(pinned))

	bindRefused(t, s, "no port of this id", bindTo("x", "h1", 1, 0))
	bindRefused(t, s, "no host of id x", bindTo("p1", "x", 1, 0))
	bindRefused(t, s, "endpoint: 0 bytes", BindRequest{Port: "p1", Host: "h1"})
	bindRefused(t, s, "has generation 0", bindTo("p1", "h1", 1, 5))

	first := bind(t, s, bindTo("p1", "h1", 1, 0))
	if again := bind(t, s, bindTo("p1", "h1", 1, 0)); again != first {
		t.Errorf("bound again: generation %d, before %d", again, first)
	}
	if again := bind(t, s, bindTo("p1", "h1", 1, 1)); again != first {
		t.Errorf("bound there already, another generation expected: %d, before %d", again, first)
	}
	bindRefused(t, s, fmt.Sprintf("has generation %d on host h1, not 1", first), bindTo("p1", "h2", 2, 1))
	second := bind(t, s, bindTo("p1", "h2", 2, first))
	if second <= first {
		t.Errorf("generation %d after %d", second, first)
	}
	if third := bind(t, s, bindTo("p1", "h2", 3, second)); third <= second {
		t.Errorf("another endpoint: generation %d after %d", third, second)
	}

	bindRefused(t, s, "restricted to host h1", bindTo("p2", "h2", 2, 0))
	third := bind(t, s, bindTo("p2", "h1", 1, 0))
	pinned.MoveTo = "h2"
	apply(t, s, setPort(pinned))
	bindRefused(t, s, "not 0", bindTo("p2", "h2", 2, 0))
	bind(t, s, bindTo("p2", "h2", 2, third))

	// deletions delete bindings
	apply(t, s, deletePort("p2"))
	if _, there := dump(t, s)[bindKey("p2")]; there {
		t.Error("the deleted port is bound")
	}
	apply(t, s, deleteHost("h2"))
	if _, there := dump(t, s)[bindKey("p1")]; there {
		t.Error("a port is bound to the deleted host")
	}
}

// Many bindings that are written together have the same revision. An invalid request
// does not affect the others.
func TestBindGroup(t *testing.T) {
	s := testMember(t).Store()
	const n = 500
	apply(t, s, append(manyPorts(n), setHost("h1", 1), setHost("h2", 2))...)
	var requests []BindRequest
	for i := range n {
		requests = append(requests, bindTo(fmt.Sprint("port", i), "h1", 1, 0))
	}
	requests[7].Port = "x"
	requests[9] = requests[8]
	requests[11] = bindTo("port10", "h1", 2, 0)
	results := s.Bind(t.Context(), requests)
	for i, r := range results {
		switch {
		case i == 7:
			wantRefusal(t, r.Err, "no port of this id")
		case i == 11: // sees the effect of the first request
			wantRefusal(t, r.Err, "not 0")
		case r.Err != nil:
			t.Errorf("%d: %v", i, r.Err)
		case i == 11:
			if r.Generation <= results[10].Generation {
				t.Errorf("the later binding has generation %d, the earlier %d", r.Generation, results[10].Generation)
			}
		case r.Generation != results[0].Generation:
			t.Errorf("%d has generation %d, expected %d", i, r.Generation, results[0].Generation)
		}
	}
}

func TestPutStatus(t *testing.T) {
	s := testMember(t).Store()
	var all []*wire.HostStatus
	for i := range embeddedOps + 10 {
		all = append(all, &wire.HostStatus{Host: fmt.Sprint("h", i), Applied: int64(i)})
	}
	all = append(all, &wire.HostStatus{Host: "h0", Applied: 77})
	if err := s.PutStatus(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	objects := follow(t, s).wait(t, func(m map[objectKey]Object) bool { return len(m) == len(all)-1 })
	if got := objects[objectKey{KindStatus, "h0"}].Message.(*wire.HostStatus).Applied; got != 77 {
		t.Errorf("the newest status of two is %d", got)
	}
}

// BenchmarkBind measures bindings that wait for etcd's disk together.
func BenchmarkBind(b *testing.B) {
	s := testMember(b).Store()
	apply(b, s, append(manyPorts(1000), setHost("h1", 1), setHost("h2", 2))...)
	for _, group := range []int{1, 100, 1000} {
		b.Run(fmt.Sprint(group), func(b *testing.B) {
			for i := range 1000 { // bound by earlier runs of the benchmark
				_, _ = s.client.Delete(b.Context(), bindKey(fmt.Sprint("port", i)))
			}
			start, last := time.Now(), make([]int64, group)
			for n := range b.N {
				requests := make([]BindRequest, group)
				for i := range requests {
					requests[i] = bindTo(fmt.Sprint("port", i), fmt.Sprint("h", n%2+1), byte(n%2+1), last[i])
				}
				for i, r := range s.Bind(b.Context(), requests) {
					if r.Err != nil {
						b.Fatal(r.Err)
					}
					last[i] = r.Generation
				}
			}
			b.ReportMetric(float64(group*b.N)/time.Since(start).Seconds(), "binds/s")
		})
	}
}
