// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weft/control/access"
)

func requestBy(role access.Role, method, target string) *http.Request {
	r := httptest.NewRequest(method, target, http.NoBody)
	return r.WithContext(access.WithConn(r.Context(), &access.Conn{Peer: access.Peer{Role: role, Share: "uid 1000", Name: "uid 1000 pid 5"}}))
}

// The role Read allows all routes that change nothing, and no other route.
func TestReaderLooksOnly(t *testing.T) {
	f := newFakes(t)
	f.vxlanPorts(1)
	f.add("in_port=p1,actions=drop")
	h := f.d.handler()
	for _, c := range []struct {
		method, target string
		status         int
	}{
		{"GET", "/v1/show", 200}, {"GET", "/v1/limits", 200}, {"GET", "/v1/routes", 200}, {"GET", "/v1/routes?port=nobody", 400}, {"GET", "/v1/flows", 200}, {"GET", "/v1/ports", 200},
		{"GET", "/v1/megaflows", 200}, {"GET", "/v1/trace?flow=ip", 200}, {"GET", "/v1/conntrack", 200}, {"GET", "/metrics", 200},
		{"GET", "/v1/hottest?interval_ms=1", 200},
		{"POST", "/v1/flows", 403}, {"DELETE", "/v1/flows", 403}, {"DELETE", "/v1/ports/p1", 403}, {"POST", "/v1/packet-out", 403},
		{"DELETE", "/v1/macs", 403}, {"DELETE", "/v1/conntrack", 403}, {"GET", "/v1/capture?port=p1", 403},
	} {
		for _, role := range []access.Role{access.Read, access.None} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, requestBy(role, c.method, c.target))
			want := c.status
			if role == access.None {
				want = http.StatusForbidden
			}
			if w.Code != want {
				t.Errorf("role %s: %s %s: %d, want %d: %s", role, c.method, c.target, w.Code, want, w.Body)
			}
		}
	}
	if n := len(f.counts()); n != 1 {
		t.Errorf("%d flows after the requests", n)
	}
}

// If a request's body is incomplete, the error is about the body.
func TestLateBody(t *testing.T) {
	f := newFakes(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer := access.Peer{Role: access.Write, Share: "uid 0", Name: "uid 0 pid 1"}
		f.d.handler().ServeHTTP(w, r.WithContext(access.WithConn(r.Context(), &access.Conn{Peer: peer})))
	}))
	defer server.Close()
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("POST /v1/ports HTTP/1.1\r\nHost: weft\r\nContent-Length: 100\r\n\r\n{\"name\":")); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(text), "body: the client has not sent") {
		t.Errorf("%d, %s, %v", resp.StatusCode, text, err)
	}
}

// The log of a change names the peer that made it.
func TestChangesAreLogged(t *testing.T) {
	f := newFakes(t)
	var log bytes.Buffer
	f.end()
	f.config.Log = slog.New(slog.NewTextHandler(&log, nil))
	f.begin()
	f.d.handler().ServeHTTP(httptest.NewRecorder(), requestBy(access.Write, "DELETE", "/v1/flows?match=tcp"))
	f.d.handler().ServeHTTP(httptest.NewRecorder(), requestBy(access.Read, "DELETE", "/v1/flows?match=udp"))
	f.end() // after end, no goroutine of the daemon writes to the log
	for _, words := range []string{
		`who="uid 1000 pid 5" method=DELETE path=/v1/flows query="match=tcp" status=200`,
		`msg="request refused" who="uid 1000 pid 5" role=read method=DELETE path=/v1/flows`,
	} {
		if !strings.Contains(log.String(), words) {
			t.Errorf("no %s in\n%s", words, log.String())
		}
	}
}
