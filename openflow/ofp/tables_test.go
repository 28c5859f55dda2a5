// SPDX-License-Identifier: Apache-2.0

package ofp

import (
	"strings"
	"testing"
)

// ovs-ofctl can decode the features, statistics and descriptions of tables.
func TestTablesAreOVSs(t *testing.T) {
	table := TableState{ID: 1, Flows: 7, MaxEntries: 1000, Evict: true}
	for _, v := range allVersions[1:] {
		r, err := Identify(End(zeros(be.AppendUint16(Begin(nil, v, 18, 9), 12), 6), 0))
		if err != nil {
			t.Fatal(err)
		}
		reply := NewReply(&r)
		reply.Add(func(b []byte) []byte { return AppendTableFeatures(b, v, &table) })
		text := strings.Join(printed(t, reply.Messages()...), "\n")
		if !strings.Contains(text, "table 1 (\"table1\")") || strings.Contains(text, "***") {
			t.Errorf("version %d: %s", v, text)
		}
	}
}
