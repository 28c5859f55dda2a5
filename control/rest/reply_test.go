// SPDX-License-Identifier: Apache-2.0

package rest

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"weft/api"
)

// A long list that is encoded in chunks has the same JSON as from json.Encoder.
func TestListsInChunks(t *testing.T) {
	for _, n := range []int{0, 1, listChunk, listChunk + 1, 2 * listChunk, 2*listChunk + 7} {
		list := make([]api.Flow, n)
		for i := range list {
			list[i].Priority = i
		}
		var out bytes.Buffer
		if err := writeJSON(&out, list); err != nil {
			t.Fatal(err)
		}
		want, _ := json.Marshal(list)
		if strings.TrimSpace(out.String()) != string(want) {
			t.Errorf("%d flows: %.80s, want %.80s", n, out.String(), want)
		}
	}
}
