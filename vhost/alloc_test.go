// SPDX-License-Identifier: Apache-2.0

//go:build !race

package vhost_test

import (
	"testing"

	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

func TestNoAllocation(t *testing.T) {
	for i := range 2 * len(vhosttest.Layouts) {
		layout := vhosttest.Layouts[i/2]
		ring := uint64(i%2) * vhost.FeatureRingPacked
		o := vhosttest.Options{Features: vhost.FeatureVersion1 | vhost.FeatureMergeable | vhost.FeatureEventIndex | ring, Layout: layout, Interrupts: true, BufLen: 700}
		from, to := guest(t, o), guest(t, o)
		a, z := open(t, from, nil), open(t, to, nil)
		b := new(packet.Batch)
		frame, got := random(1, 600), make([]byte, 0, 4096)
		n := testing.AllocsPerRun(200, func() {
			from.Tx[0].Send(frame)
			from.Tx[0].Publish()
			b.Reset()
			a.Rx()[0].Recv(b)
			z.Tx()[0].Send(b, allOffloads[:b.N])
			z.Tx()[0].Flush()
			a.Rx()[0].Release()
			a.Rx()[0].Arm()
			a.Rx()[0].Woken()
			a.Rx()[0].Disarm()
			to.Rx[0].Recv(got)
			to.Rx[0].Refill()
		})
		if n != 0 {
			t.Errorf("%v: %v allocations a pass", layout, n)
		}
	}
}
