// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"fmt"
	"net/http"
	"runtime/debug"
)

// EndOnPanic returns a handler that ends the process if h panics. net/http would otherwise
// continue, with locked locks and half-applied changes. The engine keeps forwarding.
func EndOnPanic(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer endWithPanic(r.Method + " " + r.URL.Path)
		h.ServeHTTP(w, r)
	})
}

func endWithPanic(request string) {
	if v := recover(); v != nil {
		endProcess(fmt.Sprintf("%s: %v\n\n%s", request, v, debug.Stack()))
	}
}

// endProcess panics in a new goroutine, where net/http cannot recover the panic. Tests replace
// it.
var endProcess = func(reason string) {
	go panic(reason)
	select {}
}
