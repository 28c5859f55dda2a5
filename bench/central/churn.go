// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"weft/central/wire"
)

// churn adds and deletes ports at a fixed rate. The rate does not fall if the weft-central servers
// cannot keep up.
type churn struct {
	cluster  *cluster
	fleet    *fleet
	rate     float64 // number of ports added per second, and number deleted per second
	life     time.Duration
	patience time.Duration // longest time to wait for the answer to one attempt of a write
	random   *rand.Rand

	mu     sync.Mutex
	writes []write
	failed []error
	// answered has the times of ports of real hosts: from the request that declares the port to the
	// first ping that is answered.
	answered   []time.Duration
	unanswered int // ports of real hosts that were deleted before a ping was answered
	noSpare    int // ports of real hosts that could not be added because no tap was free
}

type write struct{ began, ended time.Duration }

// run adds ports until ctx ends. It returns when all these ports have been deleted again.
func (c *churn) run(ctx context.Context) {
	var done sync.WaitGroup
	defer done.Wait()
	next := clock()
	for n := 0; ctx.Err() == nil; n++ {
		if c.fleet.site != nil && n%realEvery == 0 {
			done.Go(func() { c.realPort(n / realEvery) })
		} else {
			p, peer := c.choose()
			done.Go(func() { c.port(p, peer) })
		}
		next += time.Duration(float64(time.Second) / c.rate)
		select {
		case <-ctx.Done():
		case <-time.After(next - clock()):
		}
	}
}

// choose returns a new port "p" and another port "peer" that exchanges pings with it. The new port is
// on a random simulated host, in a random network. The other port is in the same network on a simulated
// host, and exists during the whole churn.
func (c *churn) choose() (p, peer *placed) {
	f := c.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	net := f.model.nets[c.random.IntN(len(f.model.nets))]
	p = f.model.port(net, c.random.IntN(len(f.hosts)))
	for _, other := range f.model.byNet[net.Id] { // churn never deletes the port with the smallest number
		if other.host < f.model.simulated && (peer == nil || other.key.MAC < peer.key.MAC) {
			peer = other
		}
	}
	return p, peer
}

func (c *churn) port(p, peer *placed) {
	f := c.fleet
	h := f.hosts[p.host]
	f.mu.Lock()
	f.model.add(p)
	if f.model.inNet[p.Net][p.host] == 1 {
		f.watcher.joins(p.Net, h)
	}
	if !f.model.onDemand(p.Net) {
		f.watcher.expect(p, f.model.inNet[p.Net], f.model.simulated)
	}
	f.mu.Unlock()
	began := clock()
	h.plug(p.Name)
	ctx, cancel := context.WithTimeout(context.Background(), c.life)
	defer cancel()
	go func() { f.watcher.note(f.ping(ctx, p, peer), began) }()
	c.apply(&wire.ChangeRequest{Id: "add-" + p.Id, Changes: []*wire.Change{{Change: &wire.Change_SetPort{SetPort: p.Port}}}})
	time.Sleep(c.life)
	f.mu.Lock()
	f.watcher.withdraw(p)
	if left := f.model.remove(p); left {
		f.watcher.leaves(p.Net, h)
	}
	f.mu.Unlock()
	h.unplug(p.Name)
	c.apply(&wire.ChangeRequest{Id: "del-" + p.Id, Changes: []*wire.Change{{Change: &wire.Change_DeletePort{DeletePort: p.Id}}}})
}

func (c *churn) apply(r *wire.ChangeRequest) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Minute, errTime)
	defer cancel()
	began := clock()
	_, err := c.cluster.apply(ctx, r, c.patience)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failed = append(c.failed, fmt.Errorf("%s: %w", r.Id, err))
		return
	}
	c.writes = append(c.writes, write{began, clock()})
}

// writesAfter looks at the acknowledged writes that began after the time t. "first" is the time from t
// to the first acknowledgement among them. "longest" is the longest time that one of them took.
func (c *churn) writesAfter(t time.Duration) (first, longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.writes {
		if w.began < t {
			continue
		}
		if first == 0 || w.ended-t < first {
			first = w.ended - t
		}
		longest = max(longest, w.ended-w.began)
	}
	return first, longest
}

// pauses returns the longest pause between two acknowledgements, and the number of pauses longer than
// 0.1 s. The rate of writes is constant during the churn, except at the beginning, when ports are only
// added, and at the end, when they are only deleted.
func (c *churn) pauses() (longest time.Duration, count int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var ended []time.Duration
	for _, w := range c.writes {
		ended = append(ended, w.ended)
	}
	slices.Sort(ended)
	for i := 1; i < len(ended); i++ {
		pause := ended[i] - ended[i-1]
		if longest = max(longest, pause); pause > 100*time.Millisecond {
			count++
		}
	}
	return longest, count
}

func (c *churn) latencies() (list []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.writes {
		list = append(list, w.ended-w.began)
	}
	slices.Sort(list)
	return list
}
