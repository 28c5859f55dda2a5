// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A panic in a request's handler ends the process. The error text names the request.
func TestPanicEndsTheProcess(t *testing.T) {
	old, reason := endProcess, ""
	defer func() { endProcess = old }()
	endProcess = func(text string) { reason = text }
	h := EndOnPanic(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("half done") }))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/flows", nil))
	for _, word := range []string{"POST /v1/flows: half done\n", "panic_test.go"} {
		if !strings.Contains(reason, word) {
			t.Errorf("%q lacks %q", reason, word)
		}
	}
}
