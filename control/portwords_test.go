// SPDX-License-Identifier: Apache-2.0

package control

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"weft/control/workers/workertest"
)

// With names=false, every response shows ports by number.
func TestPortsByNumber(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(2)
	f.add("in_port=p1,actions=output:p2")
	f.worker().Frame(workertest.UDPKey(1, 1, 2, 80), 100)
	for _, c := range []struct{ method, path, body, name, number string }{
		{"GET", "/v1/flows", "", "in_port=p1", "in_port=1"},
		{"GET", "/v1/trace?flow=in_port=1,udp", "", "in_port=p1", "in_port=1"},
		{"POST", "/v1/flows/diff", `{"first":""}`, "output:p2", "output:2"},
	} {
		for _, names := range []bool{true, false} {
			path := c.path
			if !names {
				path += map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "names=false"
			}
			w := httptest.NewRecorder()
			f.d.handler().ServeHTTP(w, byRoot(c.method, path, strings.NewReader(c.body)))
			text, _ := io.ReadAll(w.Body)
			if strings.Contains(string(text), c.name) != names || strings.Contains(string(text), c.number) == names {
				t.Errorf("%s %s: %s", c.method, path, text)
			}
		}
	}
	for _, path := range []string{"/v1/flows?names=x", "/v1/groups?names=x", "/v1/megaflows?names=x", "/v1/trace?flow=ip&names=x"} {
		w := httptest.NewRecorder()
		f.d.handler().ServeHTTP(w, byRoot("GET", path, nil))
		if w.Code != 400 || !strings.Contains(w.Body.String(), "names=x") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
