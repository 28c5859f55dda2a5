// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"path/filepath"
	"testing"

	"weft/control/limits"
	"weft/vhost/vhosttest"
)

// A front end's limit row shows how much of its message budget is used. The row exists until the port is
// deleted.
func TestFrontEndMessageRows(t *testing.T) {
	ps, _ := newTestPorts(t)
	path := filepath.Join(t.TempDir(), "g.sock")
	added, err := ps.Add("g", []string{"type=vhost-user", "path=" + path})
	if err != nil {
		t.Fatal(err)
	}
	rows := func() (list []limits.Row) {
		ps.LimitRows(func(r limits.Row) {
			if r.Name == "front_end_messages" {
				list = append(list, r)
			}
		})
		return list
	}
	f, err := vhosttest.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.U64(vhosttest.GetFeatures, nil); err != nil {
		t.Fatal(err)
	}
	got := rows()
	if len(got) != 1 || got[0].Holder != limits.Port(added.Number) || got[0].Used == 0 || got[0].Used > got[0].Limit ||
		got[0].Guarantee != got[0].Limit || got[0].Refused != 0 {
		t.Errorf("rows %+v", got)
	}
	if err := ps.Delete("g"); err != nil {
		t.Fatal(err)
	}
	if got := rows(); len(got) != 0 {
		t.Errorf("rows of a deleted port: %+v", got)
	}
}
