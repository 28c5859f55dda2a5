// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// client is a connection to an OVSDB server (RFC 7047). It uses conditional monitors
// (ovsdb-server(7)).
type client struct {
	conn   net.Conn
	update func(monitor string, tables tables) // called by only one goroutine

	mu      sync.Mutex // guards the fields below, and writes to conn
	next    int
	waiting map[int]call
	err     error // why the connection has ended; nil while it exists
}

// call is a request of the client that waits for the server's answer.
type call struct {
	answer chan reply
	// If skip is set, nobody reads the answer, and the client does not decode it.
	skip bool
}

type reply struct {
	result json.RawMessage
	err    error
}

// tables has the changed rows of a message, first by table and then by UUID.
type tables map[string]map[string]rowChange

// rowChange is one change of a row in the format of the notification update2. Modify has only the
// columns that changed.
type rowChange struct {
	Initial, Insert, Modify map[string]any
	Delete                  any
}

// columns returns the columns of a new row, or the changed columns of an existing one.
func (c *rowChange) columns() map[string]any {
	for _, row := range []map[string]any{c.Initial, c.Insert, c.Modify} {
		if row != nil {
			return row
		}
	}
	return nil
}

// unread is the name of a monitor whose rows the client does not decode.
const unread = "unread"

const dialLimit = 5 * time.Second

func dial(address string, update func(string, tables)) (*client, error) {
	conn, err := net.DialTimeout("tcp", address, dialLimit)
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn, update: update, waiting: map[int]call{}}
	go c.read()
	return c, nil
}

func (c *client) close() { c.conn.Close() }

// do sends a request and returns its result. If skip is set, it returns nil instead of
// the result.
func (c *client) do(limit time.Duration, skip bool, method string, params ...any) (json.RawMessage, error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return nil, c.err
	}
	c.next++
	id := c.next
	answer := make(chan reply, 1)
	c.waiting[id] = call{answer, skip}
	if params == nil {
		params = []any{} // servers close the connection if params is null
	}
	err := c.send(map[string]any{"method": method, "params": params, "id": id})
	c.mu.Unlock()
	if err != nil {
		c.close()
		return nil, err
	}
	select {
	case r := <-answer:
		return r.result, r.err
	case <-time.After(limit):
		c.close()
		return nil, fmt.Errorf("%s: no answer within %s", method, limit)
	}
}

// send writes a message. The caller holds mu.
func (c *client) send(message any) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(time.Minute))
	_, err = c.conn.Write(data)
	return err
}

// probe sends an OVSDB echo request and waits for the answer, to check the connection.
func (c *client) probe(limit time.Duration) error {
	_, err := c.do(limit, true, "echo")
	return err
}

var errConstraint = errors.New("constraint violation")

// transact runs operations in one transaction and returns their results.
func (c *client) transact(limit time.Duration, database string, operations ...any) ([]map[string]any, error) {
	raw, err := c.do(limit, false, "transact", append([]any{database}, operations...)...)
	if err != nil {
		return nil, err
	}
	var results []map[string]any
	if err := json.Unmarshal(raw, &results); err != nil {
		return nil, err
	}
	for _, r := range results {
		if r["error"] != nil {
			if r["error"] == "constraint violation" {
				return nil, fmt.Errorf("%w: %v", errConstraint, r["details"])
			}
			return nil, fmt.Errorf("transaction: %v: %v", r["error"], r["details"])
		}
	}
	return results, nil
}

// read handles messages of the server until the connection ends.
func (c *client) read() {
	in := bufio.NewReaderSize(c.conn, 64<<10)
	var err error
	for err == nil {
		var message []byte
		if message, err = readObject(in); err == nil {
			err = c.handle(message)
		}
	}
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, call := range c.waiting {
		call.answer <- reply{err: err}
		delete(c.waiting, id)
	}
}

// readObject returns the text of the next JSON object. It only looks for the end of the object.
// Decoding every object would take CPU time from the servers.
func readObject(in *bufio.Reader) (text []byte, err error) {
	depth, quoted, escaped := 0, false, false
	for {
		if _, err := in.Peek(1); err != nil {
			return nil, err
		}
		chunk, _ := in.Peek(in.Buffered())
		begin := 0
		for i, b := range chunk {
			switch {
			case escaped:
				escaped = false
			case quoted && b == '\\':
				escaped = true
			case b == '"':
				quoted = !quoted
			case quoted:
			case b == '{':
				if depth++; depth == 1 {
					begin = i
				}
			case b == '}':
				if depth--; depth == 0 {
					text = append(text, chunk[begin:i+1]...)
					_, err := in.Discard(i + 1)
					return text, err
				}
			}
		}
		if depth > 0 {
			text = append(text, chunk[begin:]...)
		}
		if _, err := in.Discard(len(chunk)); err != nil {
			return nil, err
		}
	}
}

// idOf finds the id of a reply.
var idOf = regexp.MustCompile(`"id":([0-9]+)`)

// edge is the number of bytes at each end of a long message in which the client looks for the id or
// the name of the monitor. Both are at one of the ends.
const edge = 96

func (c *client) handle(text []byte) error {
	if len(text) > 4*edge {
		ends := append(bytes.Clone(text[:edge]), text[len(text)-edge:]...)
		if bytes.Contains(ends, []byte(`"`+unread+`"`)) {
			return nil
		}
		if m := idOf.FindSubmatch(ends); m != nil {
			id, _ := strconv.Atoi(string(m[1]))
			if c.skipped(id) {
				return nil
			}
		}
	}
	var m struct {
		Method string
		Params []json.RawMessage
		Result json.RawMessage
		Error  any
		ID     any
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return err
	}
	switch m.Method {
	case "":
		id, _ := m.ID.(float64)
		c.answer(int(id), reply{m.Result, asError(m.Error)})
	case "echo":
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.send(map[string]any{"result": m.Params, "error": nil, "id": m.ID})
	case "update2":
		var name string
		var changed tables
		if len(m.Params) != 2 || json.Unmarshal(m.Params[0], &name) != nil {
			return errors.New("update2 of an unknown form")
		}
		if err := json.Unmarshal(m.Params[1], &changed); err != nil {
			return err
		}
		c.update(name, changed)
	}
	return nil
}

func asError(e any) error {
	if e == nil {
		return nil
	}
	return fmt.Errorf("%v", e)
}

// skipped ends the call with this id if nobody reads its result. Otherwise it returns false.
func (c *client) skipped(id int) bool {
	c.mu.Lock()
	skip := c.waiting[id].skip
	c.mu.Unlock()
	if skip {
		c.answer(id, reply{})
	}
	return skip
}

func (c *client) answer(id int, r reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call, known := c.waiting[id]; known {
		delete(c.waiting, id)
		call.answer <- r
	}
}

// monitor starts a conditional monitor and passes the existing rows to the function update.
func (c *client) monitor(limit time.Duration, database, name string, requests map[string]any) error {
	raw, err := c.do(limit, name == unread, "monitor_cond", database, name, requests)
	if err != nil || raw == nil {
		return err
	}
	var first tables
	if err := json.Unmarshal(raw, &first); err != nil {
		return err
	}
	c.update(name, first)
	return nil
}

// change replaces the conditions of a monitor.
func (c *client) change(limit time.Duration, name string, conditions map[string][]any) error {
	requests := map[string]any{}
	for table, clauses := range conditions {
		requests[table] = []any{map[string]any{"where": clauses}}
	}
	_, err := c.do(limit, true, "monitor_cond_change", name, name, requests)
	return err
}

// columns returns a monitor's request for one table: the columns names of all rows that meet one of
// the conditions.
func columns(conditions []any, names ...string) []any {
	return []any{map[string]any{"columns": names, "where": conditions}}
}

func uuid(id string) []any { return []any{"uuid", id} }

func named(id string) []any { return []any{"named-uuid", id} }

func set(elements []any) []any { return []any{"set", elements} }

func condition(column string, value any) []any { return []any{[]any{column, "==", value}} }

// uuidIn returns the UUID in a column, or "" if the column is empty.
func uuidIn(value any) string {
	if pair, ok := value.([]any); ok && len(pair) == 2 && pair[0] == "uuid" {
		id, _ := pair[1].(string)
		return id
	}
	return ""
}
