// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"
)

// A client that closes its connection during a request, as weft top does after Ctrl-C, is no
// error of the daemon.
func TestClientGoneIsNoError(t *testing.T) {
	f := newFakes(t)
	var log bytes.Buffer
	ctx, stop := context.WithCancel(byRoot("GET", "/v1/hottest?n=1&interval_ms=5000", nil).Context())
	stop()
	r := byRoot("GET", "/v1/hottest?n=1&interval_ms=5000", nil).WithContext(ctx)
	w := httptest.NewRecorder()
	_, err := f.d.hottest(r)
	(&Daemon{log: slog.New(slog.NewTextHandler(&log, nil))}).reply(w, nil, err)
	if err == nil || log.Len() > 0 {
		t.Errorf("%v is logged: %s", err, log.String())
	}
}
