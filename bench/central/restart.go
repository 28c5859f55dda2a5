// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"os"
	"time"

	"weft/e2e/lab"
)

// restart measures how long recovery takes after all weft-central servers were killed. It does so
// twice. The first time, the agents have their saved state; the second time, they start without any.
func (r *run) restart() {
	before := r.fleet.received()
	r.comeBack("with state", func() {})
	after := r.fleet.received()
	r.add("received by a host with state, median", Quantile(after, 0.5)-Quantile(before, 0.5), "B")
	r.fleet.halt()
	r.fleet.dir = ""
	r.comeBack("without state", r.fleet.start)
	r.add("received by a host without state, median", Quantile(r.fleet.received(), 0.5), "B")
	r.add("received by a host without state, most", Quantile(r.fleet.received(), 1), "B")
}

// statusPause is the pause between two requests for the number of connected hosts. For an answer, a
// weft-central server asks all others, which takes CPU time.
const statusPause = 50 * time.Millisecond

func (r *run) comeBack(mode string, start func()) {
	ctx, cancel := r.step()
	defer cancel()
	cpu, driver := r.cluster.cpu(), CPUOf(os.Getpid())
	began := clock()
	r.cluster.kill()
	for i := range r.cluster.nodes {
		r.cluster.start(i)
	}
	start()
	at := lab.Must(r.awaitHosts(ctx))
	last := r.fleet.asExpected(ctx)
	r.seconds("all hosts are back, "+mode, max(at, last)-began)
	r.seconds("CPU time of the centrals, "+mode, r.fleet.countedCentrals-cpu)
	r.seconds("CPU time of the simulated hosts, "+mode, r.fleet.countedDriver-driver)
	r.consistent(ctx)
}

// awaitHosts waits until every host is connected to one of the weft-central servers.
func (r *run) awaitHosts(ctx context.Context) (time.Duration, error) {
	n := 0
	at, err := await(ctx, "hosts come back", func() bool {
		time.Sleep(statusPause)
		n = r.cluster.connected(ctx)
		return n == r.hostCount()
	})
	if err != nil {
		return 0, fmt.Errorf("%w: %d of %d", err, n, r.hostCount())
	}
	return at, nil
}
