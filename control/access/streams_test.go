// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"testing"

	"weft/control/limits"
)

// One peer gets at most half of the streams. When one of them ends, another peer can have its place.
func TestStreamsAreShared(t *testing.T) {
	s := newStreams()
	var ends []func()
	open := func(p Peer) int {
		for n := 0; ; n++ {
			done, err := s.begin(p, "GET /look", &Route{})
			if err != nil {
				return n
			}
			ends = append(ends, done)
		}
	}
	if n := open(Peer{Share: "uid 1", Role: Read}); n != (maxStreams-writersReserve)/2 {
		t.Errorf("one peer has %d", n)
	}
	for i := range 20 {
		open(Peer{Share: fmt.Sprint("uid ", i+2), Role: Read})
	}
	if n := open(Peer{Share: "uid 0", Role: Write}); n == 0 {
		t.Error("peers with role Read leave no stream to peers with role Write")
	}
	if r := rowOf(t, s.LimitRows, "api_streams", limits.All()); r.Used > maxStreams || r.Refused == 0 {
		t.Errorf("%+v", r)
	}
	live := &Route{Readers: 1}
	for _, end := range ends {
		end()
	}
	if s.count != 0 || len(s.peers) != 0 {
		t.Errorf("left: %d, %v", s.count, s.peers)
	}
	if _, err := s.begin(Peer{Share: "uid 0", Role: Write}, "GET /live", live); err != nil {
		t.Error(err)
	}
	s = newStreams()
	first, err := s.begin(Peer{Share: "uid 1", Role: Read}, "GET /live", live)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.begin(Peer{Share: "uid 2", Role: Read}, "GET /live", live); err == nil {
		t.Error("peers with role Read have more streams of a route than its limit")
	}
	first()
	ends = nil
	open(Peer{Share: "uid 2", Role: Read})
	for _, end := range ends {
		end()
	}
	if s.count != 0 || len(s.peers) != 0 || s.readers["GET /look"] != 0 {
		t.Errorf("left: %d, %v", s.count, s.peers)
	}
}

// A route's limit is for all peers together.
func TestRouteServesSoMany(t *testing.T) {
	s := newStreams()
	most := &Route{Most: 2}
	for i := range 3 {
		if _, err := s.begin(Peer{Share: fmt.Sprint("uid ", i), Role: Write}, "GET /most", most); (err == nil) != (i < 2) {
			t.Errorf("request %d of a route that serves two: %v", i, err)
		}
	}
}
