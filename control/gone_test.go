// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

// If a client closes its connection during a request, as weft top does after Ctrl-C, the log has no
// error.
func TestClientGoneIsNoError(t *testing.T) {
	f := newFakes(t)
	f.end()
	var log bytes.Buffer
	f.config.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelError}))
	f.begin()
	ctx, stop := context.WithCancel(byRoot("GET", "/v1/hottest?n=1&interval_ms=5000", nil).Context())
	stop()
	r := byRoot("GET", "/v1/hottest?n=1&interval_ms=5000", nil).WithContext(ctx)
	w := httptest.NewRecorder()
	f.d.handler().ServeHTTP(w, r)
	answer := w.Body.String()
	f.end()
	if !strings.Contains(answer, context.Canceled.Error()) || log.Len() > 0 {
		t.Errorf("answer %s, log: %s", answer, log.String())
	}
}
