// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	"weft/e2e/lab"
)

func (r *run) newChurn(patience time.Duration) *churn {
	r.fleet.watcher.reset()
	return &churn{cluster: r.cluster, fleet: r.fleet, rate: r.Rate, life: r.Life, patience: patience,
		random: rand.New(rand.NewPCG(r.Seed, r.random.Uint64()))}
}

func (r *run) churn() {
	c := r.newChurn(10 * time.Second)
	before := r.cluster.counters()
	cpu, driver, began := r.cluster.cpu(), CPUOf(os.Getpid()), clock()
	ctx, cancel := context.WithTimeout(r.ctx, r.Length)
	defer cancel()
	c.run(ctx)
	took, came := (clock() - began).Seconds(), float64(max(1, len(c.writes)/2))
	cpu, driver = r.cluster.cpu()-cpu, CPUOf(os.Getpid())-driver
	r.add("ports that came", came, "ports")
	after := r.cluster.counters()
	r.add("ports bound in the write that declared them", float64(after.bound-before.bound)/came*100, "%")
	r.add("transactions of declarations a port", float64(after.transactions-before.transactions)/came, "transactions")
	r.add("batches to hosts a port", float64(after.batches-before.batches)/came, "batches")
	r.add("reads and writes of the centrals a port", float64(after.calls-before.calls)/came, "calls")
	r.latencies(c)
	r.add("CPU time of the centrals a port", cpu.Seconds()/came, "s")
	r.add("CPU time of the simulated hosts and the driver a port", driver.Seconds()/came, "s")
	r.add("CPU of the centrals", cpu.Seconds()/took, "cores")
	r.add("CPU of the simulated hosts and the driver", driver.Seconds()/took, "cores")
	r.memory()
	r.settle(c)
}

// latencies reports the times that the scenario churn has measured. A ping that was not answered while
// its port existed counts with the time never. Pings between real hosts are real frames. A simulated
// ping takes as long as the switches need to learn the addresses (see ping.go).
func (r *run) latencies(c *churn) {
	seen := r.fleet.watcher.take()
	writes := c.latencies()
	if r.fleet.site != nil {
		answered := WithNever(c.answered, c.unanswered)
		r.seconds("first answered ping, median", Quantile(answered, 0.5))
		r.seconds("first answered ping, 99 %", Quantile(answered, 0.99))
		r.seconds("first answered ping, longest", Quantile(answered, 1))
		r.add("pinged ports of real hosts", float64(len(c.answered)), "ports")
		r.add("ports without an answered ping", float64(c.unanswered), "ports")
		r.add("ports without a free tap", float64(c.noSpare), "ports")
	}
	r.seconds("write acknowledged, median", Quantile(writes, 0.5))
	r.seconds("write acknowledged, 99 %", Quantile(writes, 0.99))
	longest, pauses := c.pauses()
	r.seconds("longest time without an acknowledged write", longest)
	r.add("times of more than 0.1 s without an acknowledged write", float64(pauses), "times")
	r.seconds("first simulated ping, median", Quantile(seen.pings, 0.5))
	r.seconds("first simulated ping, 99 %", Quantile(seen.pings, 0.99))
	r.add("ports without a simulated ping", float64(seen.silent), "ports")
	if len(seen.complete) > 0 {
		r.seconds("all hosts know a port, median", Quantile(seen.complete, 0.5))
		r.seconds("all hosts know a port, 99 %", Quantile(seen.complete, 0.99))
	}
	r.add("ports not known everywhere before they went", float64(seen.unfinished), "ports")
}

func (r *run) settle(c *churn) {
	ctx, cancel := r.step()
	defer cancel()
	if len(c.failed) > 0 {
		lab.Check(fmt.Errorf("%d writes failed: %w", len(c.failed), c.failed[0]))
	}
	r.fleet.asExpected(ctx)
	r.consistent(ctx)
}

// leader kills the weft-central server whose etcd is the leader. Later it pauses the server whose etcd
// is the next leader. Meanwhile churn adds and deletes ports.
func (r *run) leader() {
	c := r.newChurn(time.Second)
	c.life = max(c.life, leaderLife)
	churning, cancel := context.WithCancel(r.ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.run(churning)
	}()
	var killed, stopped time.Duration
	err := lab.Attempt(func() { killed, stopped = r.disturb() })
	cancel()
	<-ended
	lab.Check(err)
	first, longest := c.writesAfter(killed)
	r.seconds("writes back after SIGKILL", first)
	first, _ = c.writesAfter(stopped)
	r.seconds("writes back after SIGSTOP", first)
	r.seconds("longest write", longest)
	seen := r.fleet.watcher.take()
	r.seconds("all hosts know a new port, 99 %", Quantile(seen.complete, 0.99))
	r.seconds("all hosts know a new port, longest", Quantile(seen.complete, 1))
	r.add("ports not known everywhere before they went", float64(seen.unfinished), "ports")
	began := clock()
	r.settle(c)
	r.seconds("every host as expected after the last change", clock()-began)
}

// leaderLife is the shortest lifetime of a port in the scenario leader.
const leaderLife = 15 * time.Second

const pauseLength = 5 * time.Second

func (r *run) disturb() (killed, stopped time.Duration) {
	ctx, cancel := r.step()
	defer cancel()
	time.Sleep(3 * time.Second)
	i := r.cluster.leader(ctx)
	killed = clock()
	r.cluster.end(i)
	time.Sleep(5 * time.Second)
	r.cluster.start(i)
	lab.Must(await(ctx, "the killed central comes back", func() bool {
		s, err := r.cluster.own(ctx, i)
		return err == nil && s.GetHealthy()
	}))
	time.Sleep(3 * time.Second)
	i = r.cluster.leader(ctx)
	stopped = clock()
	r.cluster.signal(i, syscall.SIGSTOP)
	time.Sleep(pauseLength)
	r.cluster.signal(i, syscall.SIGCONT)
	time.Sleep(3 * time.Second)
	return killed, stopped
}
