// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"bufio"
	"encoding/json"
	"net"
	"strings"
	"testing"
	"time"
)

func TestReadObject(t *testing.T) {
	in := bufio.NewReader(strings.NewReader(" {\"a\":\"}\\\"{\"}\n{\"b\":{\"c\":[1]}}{"))
	for _, want := range []string{`{"a":"}\"{"}`, `{"b":{"c":[1]}}`} {
		got, err := readObject(in)
		if err != nil || string(got) != want {
			t.Errorf("%s, %v; expected %s", got, err, want)
		}
	}
	if got, err := readObject(in); err == nil {
		t.Errorf("an object without an end: %s", got)
	}
}

// testServer accepts one connection. It answers each request with the texts that serve returns. If a
// request has no params, it closes the connection, as ovsdb-server does.
func testServer(t *testing.T, serve func(method string, id int) []string) (address string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		for {
			text, err := readObject(in)
			if err != nil {
				return
			}
			var m struct {
				Method string
				Params []any
				ID     int
			}
			_ = json.Unmarshal(text, &m)
			if m.Method != "" && m.Params == nil {
				return
			}
			for _, answer := range serve(m.Method, m.ID) {
				_, _ = conn.Write([]byte(strings.ReplaceAll(answer, "ID", string(rune('0'+m.ID)))))
			}
		}
	}()
	return l.Addr().String()
}

// The client passes on changed rows, answers probes, skips rows that nobody reads, and returns errors
// of the server.
func TestClient(t *testing.T) {
	long := strings.Repeat("x", 8*edge)
	var echoed = make(chan bool, 1)
	address := testServer(t, func(method string, _ int) []string {
		switch method {
		case "": // the answer to the probe below
			echoed <- true
			return nil
		case "monitor_cond":
			return []string{`{"id":ID,"result":{"Port_Binding":{"u1":{"initial":{"logical_port":"p1","chassis":["set",[]]}}}},"error":null}`,
				`{"method":"echo","params":[],"id":"echo"}`,
				`{"method":"update2","params":["` + unread + `",{"Logical_Flow":{"u2":{"insert":{"match":"` + long + `"}}}}],"id":null}`,
				`{"method":"update2","params":["own",{"Port_Binding":{"u1":{"modify":{"chassis":["uuid","c1"]}}}}],"id":null}`}
		case "monitor_cond_change":
			return []string{`{"id":ID,"result":{"` + long + `":1},"error":null}`}
		}
		return []string{`{"id":ID,"result":[{"error":"constraint violation","details":"two rows"}],"error":null}`}
	})
	changes := make(chan map[string]any, 4)
	c, err := dial(address, func(_ string, changed tables) {
		for _, row := range changed["Port_Binding"] {
			changes <- row.columns()
		}
		if changed["Logical_Flow"] != nil {
			t.Error("rows that nobody reads are decoded")
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.monitor(10*time.Second, southbound, "own", map[string]any{}); err != nil {
		t.Fatal(err)
	}
	first, second := <-changes, <-changes
	if first["logical_port"] == nil {
		first, second = second, first // the update may arrive before the answer
	}
	if first["logical_port"] != "p1" || uuidIn(first["chassis"]) != "" || uuidIn(second["chassis"]) != "c1" {
		t.Errorf("%v, %v", first, second)
	}
	<-echoed
	if err := c.change(10*time.Second, "own", map[string][]any{}); err != nil {
		t.Error(err)
	}
	if _, err := c.transact(10*time.Second, southbound); !isThere(err) || !strings.Contains(err.Error(), "two rows") {
		t.Errorf("%v; expected a constraint violation", err)
	}
}

// The server answers a probe without parameters and keeps the connection.
func TestProbe(t *testing.T) {
	address := testServer(t, func(string, int) []string { return []string{`{"id":ID,"result":[],"error":null}`} })
	c, err := dial(address, func(string, tables) {})
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	for range 2 {
		if err := c.probe(10 * time.Second); err != nil {
			t.Error(err)
		}
	}
}
