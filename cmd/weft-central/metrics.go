// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"weft/central/admin"
	"weft/central/hub"
	"weft/central/store"
)

const (
	// metricsTimeout is the time limit of one HTTP request for metrics or health.
	metricsTimeout = 5 * time.Second
	// maxMetricsConnections limits the connections to the listener of metrics. Further ones wait.
	maxMetricsConnections = 64
)

// serveMetrics serves /metrics, /healthz and /ready over HTTP. /healthz succeeds
// while the process works. /ready succeeds if the hub has read the store and etcd
// answers.
func (c *central) serveMetrics(failed chan<- error) (closeServer func(), err error) {
	listener, err := net.Listen("tcp", c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(c.collectors()...)
	mux := http.NewServeMux()
	// the embedded etcd and the Go runtime register their metrics in the default
	// registry
	mux.Handle("/metrics", promhttp.HandlerFor(prometheus.Gatherers{registry, prometheus.DefaultGatherer}, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("/ready", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), metricsTimeout/2)
		defer cancel()
		if !c.hub.Ready() {
			http.Error(w, "the hub has not read the store", http.StatusServiceUnavailable)
		} else if _, err := c.store.Revision(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		} else {
			fmt.Fprintln(w, "ok")
		}
	})
	listener = netutil.LimitListener(listener, maxMetricsConnections)
	server := &http.Server{Handler: mux, ReadTimeout: metricsTimeout, WriteTimeout: metricsTimeout, MaxHeaderBytes: 16 << 10}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed <- err
		}
	}()
	return func() { _ = server.Close() }, nil
}

// newApplied returns the histogram of the times that calls of Sync wait until all connected hosts have
// applied a revision. Its buckets are from 5 ms to 41 s.
func newApplied() prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "weft_central_applied_seconds", Help: "time from weft sync, or a change with --wait=hosts, until all connected hosts had applied the revision",
		Buckets: prometheus.ExponentialBuckets(0.005, 2, 14),
	})
}

// connections returns the sums of the counters of the two fronts: for clients and for other centrals.
func (c *central) connections() frontCounts {
	n := c.front.counts()
	if c.members != nil {
		m := c.members.counts()
		n.strangers, n.refused, n.gaveWay, n.unproven = n.strangers+m.strangers, n.refused+m.refused, n.gaveWay+m.gaveWay, n.unproven+m.unproven
	}
	return n
}

func (c *central) collectors() []prometheus.Collector {
	type row struct {
		name, help string
		counter    bool
		value      func(hub.Stats) float64
	}
	list := []prometheus.Collector{c.applied}
	for _, r := range []row{
		{"revision", "newest revision that the hub has", false, func(s hub.Stats) float64 { return float64(s.Revision) }},
		{"nets", "declared networks", false, func(s hub.Stats) float64 { return float64(s.Nets) }},
		{"ports", "declared ports", false, func(s hub.Stats) float64 { return float64(s.Ports) }},
		{"bound_ports", "bound ports", false, func(s hub.Stats) float64 { return float64(s.Bound) }},
		{"hosts", "declared hosts", false, func(s hub.Stats) float64 { return float64(s.Hosts) }},
		{"sessions", "hosts connected to this central", false, func(s hub.Stats) float64 { return float64(s.Sessions) }},
		{"messages_total", "messages queued for hosts", true, func(s hub.Stats) float64 { return float64(s.Delivered) }},
		{"bytes_total", "bytes queued for hosts", true, func(s hub.Stats) float64 { return float64(s.DeliveredBytes) }},
		{"batches_total", "batches of messages sent to hosts", true, func(s hub.Stats) float64 { return float64(s.Batches) }},
		{"waiting_sessions", "hosts that wait for changes because the hub has much to send", false, func(s hub.Stats) float64 { return float64(s.Waiting) }},
		{"pulls_total", "requests of hosts to send waiting changes at once", true, func(s hub.Stats) float64 { return float64(s.Pulls) }},
		{"rounds_total", "rounds of delivery", true, func(s hub.Stats) float64 { return float64(s.Rounds) }},
		{"questions_total", "questions of hosts for addresses", true, func(s hub.Stats) float64 { return float64(s.Questions) }},
		{"questions_refused_total", "questions beyond a host's limit", true, func(s hub.Stats) float64 { return float64(s.QuestionsRefused) }},
		{"questions_late_total", "questions for absent addresses answered without the store", true, func(s hub.Stats) float64 { return float64(s.QuestionsLate) }},
		{"interests", "addresses that hosts have asked for and whose changes they are sent", false, func(s hub.Stats) float64 { return float64(s.Interests) }},
		{"lag_revisions", "revisions by which the slowest connected host is behind", false, func(s hub.Stats) float64 { return float64(s.Lag) }},
		{"slow_sessions_total", "sessions ended because the host read too slowly", true, func(s hub.Stats) float64 { return float64(s.SlowSessions) }},
		{"long_port_names_total", "ports of hosts that are left out, because their names are longer than a declared one can be", true, func(s hub.Stats) float64 { return float64(s.LongNames) }},
		{"unknown_messages_total", "messages of hosts of a later version, of a kind that this version does not know", true, func(s hub.Stats) float64 { return float64(s.Unknown) }},
		{"waiting_dropped_total", "undeclared ports of hosts beyond what centrals tell each other", true, func(s hub.Stats) float64 { return float64(s.WaitingDropped) }},
		{"binding_doubts_total", "bindings that were changed or kept only after a report of the host", true, func(s hub.Stats) float64 { return float64(s.Doubts) }},
		{"refused_total", "requests of hosts without effect", true, func(s hub.Stats) float64 { return float64(s.Refused) }},
	} {
		value := func() float64 { return r.value(c.hub.Stats()) }
		if r.counter {
			list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weft_central_" + r.name, Help: r.help}, value))
		} else {
			list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weft_central_" + r.name, Help: r.help}, value))
		}
	}
	revocations := func(value func(admin.GateStats) float64) func() float64 {
		return func() float64 { return value(c.gate.Stats()) }
	}
	list = append(list,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weft_central_revocations", Help: "revocations of certificates"},
			revocations(func(s admin.GateStats) float64 { return float64(s.Revocations) })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weft_central_revoked_refused_total", Help: "calls refused because the certificate was revoked"},
			revocations(func(s admin.GateStats) float64 { return float64(s.Refused) })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weft_central_revoked_ended_total", Help: "running calls ended because the certificate was revoked"},
			revocations(func(s admin.GateStats) float64 { return float64(s.Ended) })))
	list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "weft_central_bound_at_once_total", Help: "ports bound in the transaction that declared them",
	}, func() float64 { return float64(c.store.BoundAtOnce()) }))
	for _, r := range []struct {
		name, help string
		value      func(store.Load) float64
	}{
		{"requests_busy_total", "requests answered busy, because too many waited", func(l store.Load) float64 { return float64(l.Busy) }},
		{"requests_total", "requests that have taken effect", func(l store.Load) float64 { return float64(l.Applied) }},
		{"transactions_total", "transactions in which they took effect", func(l store.Load) float64 { return float64(l.Transactions) }},
	} {
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weft_central_" + r.name, Help: r.help},
			func() float64 { return r.value(c.store.Load()) }))
	}
	list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weft_central_requests_waiting", Help: "requests that wait for a transaction"},
		func() float64 { return float64(c.store.Load().Waiting) }))
	for _, r := range []struct {
		name, help string
		value      func(frontCounts) float64
	}{
		{"connections_refused_total", "connections closed at a limit", func(n frontCounts) float64 { return n.refused }},
		{"connections_evicted_total", "connections closed to make room for newer ones", func(n frontCounts) float64 { return n.gaveWay }},
		{"handshakes_failed_total", "TLS handshakes that failed or took too long", func(n frontCounts) float64 { return n.unproven }},
	} {
		list = append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weft_central_" + r.name, Help: r.help},
			func() float64 { return r.value(c.connections()) }))
	}
	list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weft_central_strangers", Help: "connections without a certificate"},
		func() float64 { return c.connections().strangers }))
	return append(list, prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "weft_central_undecodable_total", Help: "stored values skipped because they are no valid objects",
	}, func() float64 { return float64(c.store.Undecodable()) }))
}
