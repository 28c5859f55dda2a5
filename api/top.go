// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Hot is a megaflow with the rates that Hottest has measured.
type Hot struct {
	Megaflow
	PacketsPerS float64 `json:"packets_per_s"`
	BytesPerS   float64 `json:"bytes_per_s"`
}

// Hottest counts the packets of all megaflows over an interval of at most a minute.
// It returns the n megaflows with the most packets, the hottest first.
func (c *Client) Hottest(n int, interval time.Duration) ([]Hot, error) {
	var hot []Hot
	q := url.Values{"n": {strconv.Itoa(n)}, "interval_ms": {strconv.FormatInt(interval.Milliseconds(), 10)}}
	return hot, c.Do(http.MethodGet, "/v1/hottest", q, nil, &hot)
}
