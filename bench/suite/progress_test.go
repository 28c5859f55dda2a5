// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	p := newProgress([]*experiment{{peers: []string{"a", "b"}}, {peers: []string{"a"}}}, 5)
	if p.turns != 15 || p.remaining(0) != 15*turnTime {
		t.Errorf("%d turns, %s left", p.turns, p.remaining(0))
	}
	if line := p.size(); line != "2 rows, 15 turns, about 2 minutes" {
		t.Error(line)
	}
	p.finished = 10
	if left := p.remaining(100 * time.Second); left != 50*time.Second {
		t.Errorf("%s left", left)
	}
	p.began = time.Now().Add(-100 * time.Second)
	if line := p.row(1, "name"); !strings.HasPrefix(line, "row 2 of 2: name  (1:40 elapsed, about 0:50 left)") {
		t.Error(line)
	}
}
