// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http"

	"weft/control/pipeline"
	"weft/control/usererr"
)

// worded returns a handler that calls answer and tells it how to show ports: by name,
// or by number if the request has names=false.
func worded(answer func(*http.Request, pipeline.PortWords) (any, error)) func(*http.Request) (any, error) {
	return func(r *http.Request) (any, error) {
		switch word := r.URL.Query().Get("names"); word {
		case "", "true":
			return answer(r, pipeline.ByName)
		case "false":
			return answer(r, pipeline.ByNumber)
		default:
			return nil, usererr.Errorf("names=%s: expected true or false", word)
		}
	}
}
