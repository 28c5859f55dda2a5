// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"path/filepath"
	"testing"

	"weft/vhost"
	"weft/vhost/vhosttest"
)

// TestSessionOffloads: a port with NoOffloads offers the guest no offload feature. Other ports offer
// all of them except UFO.
func TestSessionOffloads(t *testing.T) {
	for _, off := range []bool{false, true} {
		s, err := vhost.NewSession(vhost.Config{Path: filepath.Join(t.TempDir(), "vhost.sock"), Queues: 1, NoOffloads: off}, &vhosttest.Engine{})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{Session: s, engine: &vhosttest.Engine{}}
		r.run(t)
		var f *vhosttest.FrontEnd
		eventually(t, "listening", func() bool {
			f, err = vhosttest.Dial(r.Status().Path)
			return err == nil
		})
		offered, err := f.U64(vhosttest.GetFeatures, nil)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(offloadBits)
		if off {
			want = 0
		}
		const ufo = 1<<10 | 1<<14
		if got := offered & (offloadBits | ufo); got != want {
			t.Errorf("offloads off %v: %#x offered, want %#x", off, got, want)
		}
	}
}
