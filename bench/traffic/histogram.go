// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// A latency histogram has three digits of precision and covers a nanosecond to a minute. Longer
// latencies count as a minute.
const (
	slowest = int64(time.Minute)
	digits  = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, slowest, digits) }

// record adds a latency to the histogram. Clock errors can make a latency negative; it
// then counts as 0.
func record(h *hdrhistogram.Histogram, ns int64) {
	_ = h.RecordValue(min(max(ns, 0), slowest)) // cannot fail: the value is within the histogram's bounds
}

// Latency has percentiles of latencies in microseconds.
type Latency struct {
	// Kind says which latency was measured: "one way", "round trip" or "connection".
	Kind  string  `json:"kind"`
	Count int64   `json:"count"`
	Min   float64 `json:"min_us"`
	Mean  float64 `json:"mean_us"`
	P50   float64 `json:"p50_us"`
	P90   float64 `json:"p90_us"`
	P99   float64 `json:"p99_us"`
	P999  float64 `json:"p99_9_us"`
	Max   float64 `json:"max_us"`
	// ClockError is the largest possible error in microseconds, because the ends have different
	// clocks; 0: they have the same.
	ClockError float64 `json:"clock_error_us,omitempty"`
	// Histogram is the whole histogram in HdrHistogram's V2 compressed encoding. JSON has it in
	// base64.
	Histogram []byte `json:"hdrhistogram"`
}

func newLatency(kind string, h *hdrhistogram.Histogram, clockError time.Duration) (*Latency, error) {
	if h.TotalCount() == 0 {
		return nil, nil
	}
	encoded, err := h.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, fmt.Errorf("histogram: %w", err)
	}
	us := func(ns int64) float64 { return float64(ns) / 1e3 }
	return &Latency{
		Kind: kind, Count: h.TotalCount(), Min: us(h.Min()), Mean: h.Mean() / 1e3, Max: us(h.Max()),
		P50: us(h.ValueAtPercentile(50)), P90: us(h.ValueAtPercentile(90)), P99: us(h.ValueAtPercentile(99)), P999: us(h.ValueAtPercentile(99.9)),
		ClockError: us(clockError.Nanoseconds()), Histogram: encoded,
	}, nil
}
