// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"encoding/json"
	"net/http"
	"time"

	"weft/api"
)

// stream sends a response of unlimited length: one JSON value a line, until the client
// disconnects.
type stream struct {
	w       http.ResponseWriter
	enc     *json.Encoder
	control *http.ResponseController
}

func newStream(w http.ResponseWriter) *stream {
	return &stream{w: w, enc: json.NewEncoder(w), control: http.NewResponseController(w)}
}

// begin sends the response header, from which the client knows that its capture or monitor is
// active.
func (s *stream) begin() error {
	s.w.Header().Set("Content-Type", "application/x-ndjson")
	s.w.WriteHeader(http.StatusOK)
	return s.flush()
}

// streamPatience is the longest time for which the client of a stream may stop reading.
const streamPatience = 10 * time.Second

func (s *stream) send(v any) error {
	// error ignored: it occurs only in tests whose connections have no deadlines
	_ = s.control.SetWriteDeadline(time.Now().Add(streamPatience))
	return s.enc.Encode(v)
}

func (s *stream) sendEvent(e *api.Event) error { return s.send(e) }

func (s *stream) flush() error { return s.control.Flush() }
