// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/port/porttest"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

const hugePool = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"

// hugePages adds pages to the machine's pool of huge pages until the test ends. The
// returned function empty removes all free pages from the pool.
func hugePages(t *testing.T, pages int) (empty func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a pool of huge pages")
	}
	was, err := os.ReadFile(hugePool)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(was)))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hugePool, []byte(fmt.Sprint(n+pages)), 0o644); err != nil {
		t.Fatal(err)
	}
	resize := func(dst []byte) {
		if err := os.WriteFile(hugePool, dst, 0o644); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { resize(was) })
	return func() { resize([]byte("0")) }
}

// If a guest's huge pages disappear while the worker reads or writes them, only the
// guest's port fails.
func TestFaultOfHugePages(t *testing.T) {
	for _, c := range []struct {
		name  string
		reads bool
		hole  bool
	}{{"cut off, read", true, false}, {"cut off, written", false, false}, {"no pages, read", true, true}, {"no pages, written", false, true}} {
		t.Run(c.name, func(t *testing.T) {
			panicOnFault(t)
			empty := hugePages(t, 4)
			g, err := vhosttest.New(vhosttest.Options{Features: vhost.FeatureVersion1, Num: 64, HugePages: true})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			d, err := g.Open(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			r := newRig(t, testSizes)
			if err := r.w.addPort(&PortQueues{Port: 1, Rx: d.Rx(), Tx: d.Tx()[0]}); err != nil {
				t.Fatal(err)
			}
			r.addPort(2, porttest.Options{}, false)
			r.addPort(3, porttest.Options{}, false)
			r.install(0, 1, 0xa, output(2))
			r.install(1, 2, 0xa, output(1))
			r.install(2, 2, 0xb, output(3))
			g.Tx[0].Send(ethernet(0xa, 1000, 1))
			g.Tx[0].Publish()
			r.inject(2, ethernet(0xa, 1000, 2))
			r.turn()
			r.equal("from huge pages", r.sh.Ports[2].TxPackets, 1)
			r.equal("to huge pages", r.sh.Ports[1].TxPackets, 1)
			if !c.reads {
				// The worker skips a queue with this debt (extra cost), so it writes before it reads.
				r.w.queues.queue(0).debtNS = 1 << 40
			}
			if c.hole {
				err = unix.Fallocate(g.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4*vhosttest.HugePage)
				empty()
			} else {
				err = g.Truncate(0)
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				r.inject(2, ethernet(0xa, 1000, 3), ethernet(0xb, 1000, 4))
				r.turn()
				r.turn()
			}
			r.mustFault(1, "memory failed")
			r.equal("between the others", r.sh.Ports[3].TxPackets, 3)
			r.equal("lent", uint64(r.rx(2).Lent()), 0)
			r.equal("queues", uint64(r.w.queues.count), 2)
			r.equal("frames accounted for", r.total(), 8)
		})
	}
}
