// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"weft/datapath"
	"weft/packet"
)

// BenchmarkReadSessions measures one reading of the states of all BFD sessions, which are of
// one port.
func BenchmarkReadSessions(b *testing.B) {
	tab := NewTemplates(nil, slog.New(slog.DiscardHandler))
	var remotes []Tunnel
	for i := range datapath.MaxBFD {
		key := Tunnel{Port: 1, Remote: netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})}
		remotes = append(remotes, key)
		tab.sessions[key] = &session{Session: Session{Tunnel: key}, index: uint32(i)}
		tab.byKey[key] = &entry{Tunnel: key}
	}
	tab.Watch(remotes)
	for range b.N {
		tab.readSessions()
	}
}

// BenchmarkRefresh measures how long it takes to resolve the routes of all tunnels
// after one change of routes.
func BenchmarkRefresh(b *testing.B) {
	for _, remotes := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(remotes), func(b *testing.B) {
			l := newTunnelLab(b)
			l.host.Exec("ip", "neigh", "replace", "10.1.0.2", "lladdr", "02:00:00:00:00:02", "dev", "u0", "nud", "permanent")
			l.host.Exec("ip", "route", "add", "10.2.0.0/16", "via", "10.1.0.2")
			ts := newSent(b)
			tab := NewTemplates(l.u, slog.New(slog.DiscardHandler))
			tab.Replay(ts, make([]Record, MaxTemplates))
			tab.SetPorts(map[string]uint32{"u0": 9}, map[uint32]Encap{1: {}})
			began := time.Now()
			for i := range remotes {
				key := Tunnel{Port: 1, Remote: netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)})}
				if _, reason := tab.Template(key, 4789); reason != packet.DropNone {
					b.Fatal(reason)
				}
			}
			made := time.Since(began)
			b.ResetTimer()
			for range b.N {
				tab.refresh(true)
			}
			b.ReportMetric(float64(made.Microseconds())/float64(remotes), "µs-to-make-one")
		})
	}
}
