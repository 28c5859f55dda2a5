// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http/httptest"
	"strings"
	"testing"

	"weft/engine"
)

func (f *fakes) probe(path string) (status int, text string) {
	answer := httptest.NewRecorder()
	f.d.rest.Metrics().ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
	return answer.Code, strings.TrimSpace(answer.Body.String())
}

func (f *fakes) wantProbe(path string, status int, text string) {
	f.t.Helper()
	if code, got := f.probe(path); code != status || !strings.Contains(got, text) {
		f.t.Errorf("%s: %d %q, want %d %q", path, code, got, status, text)
	}
}

// The probe /ready succeeds once the daemon has started and while the engine runs. The
// probe /healthz succeeds whenever the control process answers.
func TestHealthProbes(t *testing.T) {
	f := newFakes(t)
	f.wantProbe("/ready", 200, "ready")
	f.wantProbe("/healthz", 200, "ok")
	f.wantProbe("/metrics", 200, "weft_engine_up 1")
	f.d.engines.SetTrouble("the engine has died; weftd is starting another")
	f.wantProbe("/ready", 503, "the engine has died")
	f.wantProbe("/healthz", 200, "ok")
	s, begun := f.restartOver(engine.Pending{})
	f.wantProbe("/ready", 503, "weftd is starting")
	f.wantProbe("/healthz", 200, "ok")
	close(s.answer)
	<-begun
	f.wantProbe("/ready", 200, "ready")
	f.wantProbe("/", 404, "")
}
