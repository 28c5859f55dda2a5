// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
)

// served returns a session with a server that sends what the function feed writes.
func served(t *testing.T, feed func(w io.Writer)) *session {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	s := &session{conn: ours, mostMessage: 1 << 20, mostQueued: 1 << 20, waiting: map[int64]chan message{}, arrived: make(chan struct{}, 1), ended: make(chan struct{}), heard: make(chan struct{}, 1)}
	go s.read()
	go feed(theirs)
	return s
}

// A session ends if the server sends an endless message, or too many notifications that nobody takes.
func TestServerSendsTooMuch(t *testing.T) {
	part := []byte(strings.Repeat("a", 1<<16))
	for name, feed := range map[string]func(w io.Writer){
		"message": func(w io.Writer) {
			_, err := io.WriteString(w, `{"method":"update3","params":["`)
			for err == nil {
				_, err = w.Write(part)
			}
		},
		"notifications": func(w io.Writer) {
			var err error
			for err == nil {
				_, err = fmt.Fprintf(w, `{"method":"update3","params":["%s"],"id":null}`, part)
			}
		},
	} {
		s := served(t, feed)
		<-s.ended
		if err := s.reason(); !errors.Is(err, errTooMuch) {
			t.Errorf("%s: the session ends with %v", name, err)
		}
	}
}

// Rows beyond the limits are refused. The rows of a usual switch are far below the limits.
func TestRowsAreLimited(t *testing.T) {
	for _, c := range []struct {
		rows, bytes int
		fails       bool
	}{{4096, 1000, false}, {maxRows + 1, 1, true}, {129, 1 << 20, true}} {
		r := row{"external_ids": value{pairs: map[any]any{"key": strings.Repeat("a", c.bytes)}}}
		rows := tables{"Interface": {}}
		for n := range c.rows {
			rows["Interface"][uuid(strconv.Itoa(n))] = r
		}
		if err := rows.check(); errors.Is(err, errTooMuch) != c.fails {
			t.Errorf("%d rows of %d bytes: %v", c.rows, c.bytes, err)
		}
	}
}
