// SPDX-License-Identifier: Apache-2.0

package ovn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"weft/bench/central"
)

// arrival has the times of one port that churn has added.
type arrival struct {
	began, up time.Time // up is zero if the port was deleted before it was up
	err       error
}

// come adds ports at the rate r.Rate until ctx ends, and deletes each port after the time "life". It
// returns when all of these ports have been deleted.
func (r *run) come(ctx context.Context, life time.Duration) (list []arrival) {
	random := rand.New(rand.NewPCG(2, 2))
	var mu sync.Mutex
	var done sync.WaitGroup
	for next := time.Now(); ctx.Err() == nil; next = next.Add(time.Duration(float64(time.Second) / r.Rate)) {
		sw, host := random.IntN(r.switches), random.IntN(len(r.chassis))
		r.mu.Lock()
		name := r.newPort(sw, host)
		r.mu.Unlock()
		done.Go(func() {
			a := r.comeAndGo(name, life)
			mu.Lock()
			defer mu.Unlock()
			list = append(list, a)
		})
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(next)):
		}
	}
	done.Wait()
	return list
}

func (r *run) comeAndGo(name string, life time.Duration) (a arrival) {
	r.mu.Lock()
	sw, h := r.switchOf[name], r.chassis[r.home[name]]
	r.mu.Unlock()
	a.began = time.Now()
	if a.err = r.declare(r.Limit, sw, []string{name}); a.err == nil {
		r.await(time.Until(a.began.Add(life)), func() bool { a.up = r.up[name]; return !a.up.IsZero() })
		time.Sleep(time.Until(a.began.Add(life)))
	}
	r.mu.Lock()
	delete(r.home, name)
	r.mu.Unlock()
	h.remove(name)
	found, err := r.north.transact(r.Limit, northbound, map[string]any{"op": "select", "table": "Logical_Switch_Port", "where": condition("name", name), "columns": []string{"_uuid"}})
	if err != nil {
		a.err = err
		return a
	}
	if rows, _ := found[0]["rows"].([]any); len(rows) > 0 {
		row, _ := rows[0].(map[string]any)
		_, err = r.north.transact(r.Limit, northbound, map[string]any{"op": "mutate", "table": "Logical_Switch", "where": condition("name", fmt.Sprint("sw", sw)),
			"mutations": []any{[]any{"ports", "delete", set([]any{row["_uuid"]})}}})
		if err != nil {
			a.err = err
		}
	}
	return a
}

func (r *run) churn() error {
	ctx, cancel := context.WithTimeout(r.ctx, r.Length)
	defer cancel()
	list := r.come(ctx, r.Life)
	var times []time.Duration
	late := 0
	for _, a := range list {
		switch {
		case a.err != nil:
			return a.err
		case a.up.IsZero():
			late++
		default:
			times = append(times, a.up.Sub(a.began))
		}
	}
	times = central.WithNever(times, late)
	r.add("ports that came", float64(len(list)), "ports")
	r.add("ports not up before they went", float64(late), "ports")
	r.seconds("first answered ping, median", central.Quantile(times, 0.5))
	r.seconds("first answered ping, 99 %", central.Quantile(times, 0.99))
	return r.settle()
}

// settle waits until all deleted ports are gone from the database and all others are
// up.
func (r *run) settle() error {
	if _, err := r.syncOnce(r.Limit); err != nil {
		return err
	}
	if err := r.allUp(r.Limit); err != nil {
		return err
	}
	return r.consistent()
}

// leaderLife is how long a port exists in the scenario leader. churnAfter is how long ports are still
// added after the leader was killed.
const leaderLife, churnAfter = 60 * time.Second, 40 * time.Second

// leader kills the leader of the southbound database while ports are added and deleted. It starts the
// killed server again after five seconds.
func (r *run) leader() error {
	i, err := r.sb.leader()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.ctx, 3*time.Second+churnAfter)
	defer cancel()
	var killed time.Time
	var startErr error
	var done sync.WaitGroup
	done.Go(func() {
		time.Sleep(3 * time.Second)
		killed = time.Now()
		r.sb.kill(i)
		time.Sleep(5 * time.Second)
		startErr = r.sb.start(i)
	})
	list := r.come(ctx, leaderLife)
	done.Wait()
	if startErr != nil {
		return startErr
	}
	var first time.Duration
	lost := 0
	for _, a := range list {
		if a.began.Before(killed) {
			continue
		}
		if a.up.IsZero() {
			lost++
		} else if took := a.up.Sub(killed); first == 0 || took < first {
			first = took
		}
	}
	if first == 0 {
		return fmt.Errorf("none of %d ports was up within %s", lost, leaderLife)
	}
	r.seconds("writes back after SIGKILL", first)
	r.add("ports not up before they went", float64(lost), "ports")
	began := time.Now()
	if err := r.settle(); err != nil {
		return err
	}
	r.seconds("all ports up after the last change", time.Since(began))
	return nil
}

// restart kills all servers of the southbound database and starts them again. A host counts as
// recovered when its monitors have been answered and it has reported a new configuration number.
func (r *run) restart() error {
	began := time.Now()
	r.sb.killAll()
	for i := range r.sb.servers {
		if err := r.sb.start(i); err != nil {
			return err
		}
	}
	time.Sleep(time.Second) // let the hosts notice that their connections have ended
	if err := r.connected(began); err != nil {
		return err
	}
	if _, err := r.syncOnce(r.Limit); err != nil {
		return err
	}
	r.seconds("all hosts are back, with state", time.Since(began))
	if err := r.allUp(r.Limit); err != nil {
		return err
	}
	return r.consistent()
}
