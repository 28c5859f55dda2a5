// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft/central/wire"
	"weft/e2e/lab"
)

// pingInterval is the interval of the pings that show when a port becomes reachable.
const pingInterval = 2 * time.Millisecond

// realPort adds a port of a real host, and deletes it after the time c.life. It measures how long it
// takes until the port answers pings from a guest of another real host. The port's tap already exists,
// and the pings carry the port's MAC address, so the time includes neither the creation of a tap nor
// ARP.
func (c *churn) realPort(number int) {
	f, s := c.fleet, c.fleet.site
	t := s.takeSpare()
	if t == nil {
		c.mu.Lock()
		c.noSpare++
		c.mu.Unlock()
		return
	}
	defer s.release(t)
	k := number % len(s.nets)
	peer := s.peerOf(t, k, number)
	f.mu.Lock()
	p := f.model.port(s.nets[k], t.host.n)
	err := t.declare(p)
	f.model.add(p)
	f.mu.Unlock()
	if err != nil {
		c.mu.Lock()
		c.failed = append(c.failed, err)
		c.mu.Unlock()
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.life)
	defer cancel()
	began := clock()
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		at, ok := peer.firstAnswer(ctx, p, pingInterval)
		c.mu.Lock()
		defer c.mu.Unlock()
		if ok {
			c.answered = append(c.answered, at-began)
		} else {
			c.unanswered++
		}
	}()
	c.apply(&wire.ChangeRequest{Id: "add-" + p.Id, Changes: []*wire.Change{{Change: &wire.Change_SetPort{SetPort: p.Port}}}})
	<-pinged
	time.Sleep(c.life - (clock() - began))
	f.mu.Lock()
	f.model.remove(p)
	f.mu.Unlock()
	c.apply(&wire.ChangeRequest{Id: "del-" + p.Id, Changes: []*wire.Change{{Change: &wire.Change_DeletePort{DeletePort: p.Id}}}})
}

// moves is the number of guests that move to another host in the scenario move.
const moves = 20

// moveLimit is the longest time for which a moving guest may be out of reach.
const moveLimit = 10 * time.Second

// errUnreached means that no ping to a guest was answered in time.
var errUnreached = errors.New("no answered ping")

// move moves guests between real hosts. Both hosts have a tap for the guest, and a guest of a third
// host pings it. The moving guest stops answering on the old host and at once announces itself on the
// new one, as if its machine had not paused. The measured time is from the announcement to the first
// ping that arrives on the new host.
func (r *run) move() {
	ctx, cancel := r.step()
	defer cancel()
	s := r.fleet.site
	if s == nil || len(s.hosts) < 3 {
		lab.Check(errors.New("needs three real hosts"))
	}
	var times []time.Duration
	lost := 0
	for n := range moves {
		var cutOver time.Duration
		var missed int
		if err := lab.Attempt(func() { cutOver, missed = r.moveOne(ctx, n) }); err != nil {
			lab.Check(fmt.Errorf("move %d: %w", n, err))
		}
		times = append(times, cutOver)
		lost += missed
	}
	slices.Sort(times)
	r.seconds("cut-over, median", Quantile(times, 0.5))
	r.seconds("cut-over, longest", Quantile(times, 1))
	r.add("moves", moves, "moves")
	r.add("lost pings to a moved guest, 1 each 2 ms", float64(lost)/moves, "pings/move")
	r.fleet.asExpected(ctx)
	r.consistent(ctx)
}

func (r *run) moveOne(ctx context.Context, n int) (duration time.Duration, lost int) {
	f, s := r.fleet, r.fleet.site
	from, to := s.hosts[n%len(s.hosts)], s.hosts[(n+1)%len(s.hosts)]
	third, k := s.hosts[(n+2)%len(s.hosts)], n%len(s.nets)
	name := fmt.Sprintf("m%d", n)
	old := from.addTap(name)
	moved := to.addTap(name)
	f.mu.Lock()
	p := f.model.port(s.nets[k], from.n)
	err := errors.Join(old.declare(p), moved.declare(p), moved.call("Silence", moved.ref(), &struct{}{}))
	p.Host = f.model.hosts[from.n].Id
	f.model.add(p)
	f.mu.Unlock()
	lab.Check(err)
	r.setAndSync(ctx, p.Port)
	limit, cancel := context.WithTimeout(ctx, moveLimit)
	defer cancel()
	if _, ok := third.steady[k].firstAnswer(limit, p, pingInterval); !ok {
		lab.Check(fmt.Errorf("%w from the old host", errUnreached))
	}
	p.MoveTo = f.model.hosts[to.n].Id
	r.setAndSync(ctx, p.Port)
	id := third.steady[k].startPings(p, pingInterval)
	time.Sleep(100 * time.Millisecond)
	if err = moved.call("Move", MoveArgs{old.ref(), moved.ref(), moveLimit}, &duration); err == nil && duration == 0 {
		err = fmt.Errorf("%w from the new host", errUnreached)
	}
	time.Sleep(300 * time.Millisecond)
	var tallies []Tally
	err = errors.Join(err, moved.call("End", EndArgs{[]uint16{id}, lastAnswers / 6}, &tallies))
	for _, t := range tallies {
		lost = t.Lost
	}
	f.mu.Lock()
	f.model.remove(p)
	p.host, p.Host, p.MoveTo = to.n, f.model.hosts[to.n].Id, ""
	f.model.add(p)
	f.mu.Unlock()
	lab.Check(errors.Join(err, from.api.DelPort(name)))
	return duration, lost
}

// setAndSync declares a port and waits until all hosts have applied the declaration.
func (r *run) setAndSync(ctx context.Context, p *wire.Port) {
	r.revision = lab.Must(r.cluster.apply(ctx, &wire.ChangeRequest{Changes: []*wire.Change{{Change: &wire.Change_SetPort{SetPort: p}}}}, time.Minute))
	r.cluster.sync(ctx, r.revision)
}

// offLength is how long all weft-central servers are off in the scenario off, in addition to the time
// in which the control processes restart.
const offLength = 10 * time.Second

// withoutCentrals kills all weft-central servers. Then it restarts the control process of each real
// host. Finally it starts the servers again and waits until all hosts have the expected state. The
// caller, play, counts the pings that were lost meanwhile.
func (r *run) withoutCentrals() {
	ctx, cancel := r.step()
	defer cancel()
	if r.fleet.site == nil {
		lab.Check(errors.New("needs real hosts"))
	}
	r.cluster.kill()
	began := clock()
	time.Sleep(offLength / 2)
	lab.Check(r.fleet.site.restartControl(ctx))
	time.Sleep(offLength / 2)
	r.seconds("all centrals off for", clock()-began)
	for i := range r.cluster.nodes {
		r.cluster.start(i)
	}
	lab.Must(r.awaitHosts(ctx))
	r.fleet.asExpected(ctx)
	r.consistent(ctx)
}
