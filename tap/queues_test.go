// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"weft/internal/testnet"
	"weft/packet"
)

// The kernel spreads flows over all queues of a tap, each flow in order on one queue.
// Frames written to any queue reach the kernel.
func TestQueuesShareTheFlows(t *testing.T) {
	const queues, flows, each = 4, 64, 20
	n := testnet.New(t)
	d := open(t, create(t, Config{Dev: "tap0", Netns: n.Name, Queues: queues, Offloads: true}))
	defer d.Close()
	n.Exec("ip", "address", "add", "10.9.0.1/24", "dev", "tap0")
	n.Exec("ip", "neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:02", "dev", "tap0", "nud", "permanent")
	var socks []net.Conn
	n.Do(func() {
		for range flows {
			c, err := net.Dial("udp4", "10.9.0.2:9")
			if err != nil {
				t.Fatal(err)
			}
			socks = append(socks, c)
			t.Cleanup(func() { c.Close() })
		}
	})
	for seq := range each {
		for _, c := range socks {
			if _, err := c.Write([]byte{byte(seq)}); err != nil {
				t.Fatal(err)
			}
		}
	}

	next, by := map[uint16]byte{}, map[uint16]int{} // by the flow's UDP source port
	used := map[int]bool{}
	b, total := new(packet.Batch), 0
	for end := time.Now().Add(30 * time.Second); total < flows*each && time.Now().Before(end); {
		for q, rx := range d.Rx() {
			b.Reset()
			if rx.Recv(b) < 0 {
				t.Fatal(rx.Fault())
			}
			for i := range b.N {
				data := make([]byte, b.Frames[i].Len())
				if b.Gather(&b.Frames[i], data); len(data) < 43 || data[12] != 8 || data[23] != packet.ProtoUDP || binary.BigEndian.Uint16(data[36:]) != 9 {
					continue // the kernel sends frames of its own
				}
				flow := binary.BigEndian.Uint16(data[34:])
				if was, seen := by[flow]; seen && was != q {
					t.Fatalf("flow %d arrives by queue %d and by queue %d", flow, was, q)
				}
				if data[42] != next[flow] {
					t.Fatalf("flow %d: received datagram %d, want %d", flow, data[42], next[flow])
				}
				by[flow], next[flow], used[q] = q, next[flow]+1, true
				total++
			}
			rx.Release()
		}
	}
	if total != flows*each || len(used) != queues {
		t.Errorf("received %d of %d datagrams by %d of %d queues", total, flows*each, len(used), queues)
	}

	w := openWire(t, n, "tap0")
	for q, tx := range d.Tx() {
		want := fill(b, []int{60 + q, 1000})
		if taken := tx.Send(b, order[:2]); taken != 2 {
			t.Fatalf("queue %d took %d of 2 frames", q, taken)
		}
		tx.Flush()
		for i := range want {
			if got := w.receive(); !bytes.Equal(got, want[i]) {
				t.Errorf("queue %d: %d bytes arrived of %d", q, len(got), len(want[i]))
			}
		}
	}
}
