// SPDX-License-Identifier: Apache-2.0

package replica

import "time"

// Report has the measurements of the client.
type Report struct {
	Requests int     `json:"requests"`
	Window   int     `json:"window"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"requests_per_second"`
	// Percentiles and maximum of the time from a request to its reply, in
	// microseconds.
	P50  float64 `json:"p50_us"`
	P90  float64 `json:"p90_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p99_9_us"`
	Max  float64 `json:"max_us"`
	// Members has the CPU time of the replicas, in order, and then of the client. It
	// includes the warm-up. The sum of user and system time is exact. Some kernels only
	// estimate how the sum is divided between the two, by samples at clock ticks.
	Members [Replicas + 1]CPU `json:"cpu"`
}

// CPU is the CPU time of one replica or of the client in seconds.
type CPU struct {
	User   float64 `json:"user_seconds"`
	System float64 `json:"system_seconds"`
}

func newReport(c *Config, a *asker, messages [Replicas]Message) *Report {
	us := func(p float64) float64 { return float64(a.times.ValueAtPercentile(p)) / 1e3 }
	r := &Report{Requests: int(c.Requests), Window: c.Window, Seconds: (a.end - a.begin).Seconds(),
		P50: us(50), P90: us(90), P99: us(99), P999: us(99.9), Max: float64(a.times.Max()) / 1e3}
	if r.Seconds > 0 {
		r.Rate = float64(c.Requests) / r.Seconds
	}
	for i := range messages {
		r.Members[i] = CPU{User: time.Duration(messages[i].User).Seconds(), System: time.Duration(messages[i].System).Seconds()}
	}
	return r
}
