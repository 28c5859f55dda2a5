// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"context"
	"time"

	"weft/control/loop"
	"weft/tunnel"
)

// Intervals at which templates are refreshed without a kernel event.
const (
	// refreshAll is the interval for all templates. The kernel sends no event when a path MTU
	// expires.
	refreshAll = 10 * time.Second
	// refreshStale is the interval for stale neighbours, which the kernel must confirm.
	// refreshAwaited is the interval for neighbours that the kernel is resolving.
	refreshStale   = time.Second
	refreshAwaited = 100 * time.Millisecond
)

// Follow refreshes the templates after kernel events, until ctx ends.
func (t *Templates) Follow(ctx context.Context) {
	last := time.Now()
	for {
		again := refreshStale
		if t.awaitsNeighbour() {
			again = refreshAwaited
		}
		timer := time.NewTimer(again)
		all := true
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-t.kernel.changed:
			timer.Stop()
		case <-timer.C:
			all = time.Since(last) >= refreshAll
		}
		began := time.Now()
		t.refresh(all)
		if all {
			last = began
		}
		// Routes may change all the time. The pause is four times as long as the refresh, so that
		// refreshes use at most a fifth of a core.
		if !loop.Sleep(ctx, max(time.Millisecond, 4*time.Since(began))) {
			return
		}
	}
}

// awaitsNeighbour reports whether any template waits until the kernel has resolved its neighbour.
func (t *Templates) awaitsNeighbour() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range t.byIndex {
		if e != nil && !e.askedAt.IsZero() && !e.failed {
			return true
		}
	}
	return false
}

// refresh asks the kernel again about the paths of templates, and sends changed
// templates to the workers. If confirmedToo is false, it asks only about templates whose
// neighbour is not confirmed.
func (t *Templates) refresh(confirmedToo bool) {
	for from, more := 0, true; more; from += refreshChunk {
		more = t.refreshSome(from, confirmedToo)
	}
	t.mu.Lock()
	t.syncSessions()
	t.mu.Unlock()
	t.refreshWatches(confirmedToo)
}

// refreshSome refreshes up to refreshChunk templates, starting at index start. It
// reports whether templates remain after them.
func (t *Templates) refreshSome(start int, confirmedToo bool) (remaining bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for i := start; i < min(start+refreshChunk, len(t.byIndex)); i++ {
		e := t.byIndex[i]
		if e != nil && e.parent == nil && (confirmedToo || e.hop.state != hopReady && e.hop.state != hopNoRoute) {
			t.refreshEntry(e, now)
		}
	}
	return start+refreshChunk < len(t.byIndex)
}

func (t *Templates) refreshEntry(e *entry, now time.Time) {
	device := ""
	if e.Remote.IsMulticast() {
		device = t.encaps[e.Port].Dev
	}
	e.hop = t.kernel.resolve(e.Local, e.Remote, device)
	gone := t.followNextHops(e)
	if len(e.members) > 0 && e.hop.local.IsValid() {
		t.setTemplate(e, t.spreadTemplate(e, now))
	} else {
		t.setTemplate(e, t.hopTemplate(e, now))
	}
	for _, m := range gone {
		t.free(m)
	}
	t.releaseWaiting(e)
}

// hopTemplate builds the template of entry e from its path e.hop. It is for a route with a single next
// hop, and for each member of a route with several.
func (t *Templates) hopTemplate(e *entry, now time.Time) tunnel.Template {
	uplink, isUplink := t.uplinks[e.hop.device]
	if !isUplink && e.hop.state != hopNoRoute {
		e.hop.state, e.hop.reason = hopNoRoute, noUplink(e.Remote, e.hop.device)
	}
	t.pursueNeighbour(e, now)
	return e.build(uplink, t.encaps[e.Port])
}

// setTemplate makes "next" the template of entry e, and sends it to the workers if it differs
// from the present one.
func (t *Templates) setTemplate(e *entry, next tunnel.Template) {
	if next != e.template {
		if next.State == tunnel.TemplateNoRoute || next.State == tunnel.TemplateNoNeighbour {
			t.log.Info("tunnel is down", "remote", e.Remote, "why", e.hop.reason)
		}
		e.template = next
		t.send(e)
	}
}

// pursueNeighbour probes the neighbour of e again if the template needs its MAC address. After
// neighbourTimeout without an answer, it marks the neighbour as failed, so that the waiting frames are
// dropped.
func (t *Templates) pursueNeighbour(e *entry, now time.Time) {
	switch e.hop.state {
	case hopReady, hopNoRoute:
		e.askedAt, e.failed = time.Time{}, false
		return
	case hopStale:
		e.askedAt, e.failed = time.Time{}, false
	case hopFailed:
		e.failed = e.failed || !e.askedAt.IsZero()
		if e.askedAt.IsZero() {
			e.askedAt = now
		}
	case hopPending:
		if e.askedAt.IsZero() {
			e.askedAt = now
		}
	}
	if !e.askedAt.IsZero() && now.Sub(e.askedAt) >= neighbourTimeout {
		e.failed = true
		e.hop.reason = e.hop.next.String() + " does not answer on " + e.hop.device
	}
	if now.Sub(e.probedAt) < reprobe || now.Sub(e.usedAt) > templateIdle {
		return
	}
	e.probedAt = now
	if err := t.kernel.probe(&e.hop); err != nil {
		t.log.Warn("cannot make the kernel probe a neighbour", "neighbour", e.hop.next, "device", e.hop.device, "error", err)
	}
}

func (e *entry) build(uplink uint32, set Encap) tunnel.Template {
	switch {
	case e.hop.state == hopNoRoute:
		return tunnel.Template{State: tunnel.TemplateNoRoute}
	case e.hop.state == hopReady || e.hop.state == hopStale:
	case e.failed:
		return tunnel.Template{State: tunnel.TemplateNoNeighbour}
	default:
		return tunnel.Template{State: tunnel.TemplatePending}
	}
	p := set.params(e.Remote, e.udpPort)
	p.Port, p.MTU = uplink, uint16(min(e.hop.mtu+ethernetBytes, 1<<16-1))
	p.SrcMAC, p.DstMAC = e.hop.srcMAC, e.hop.dstMAC
	p.Local, p.Remote = e.hop.local, e.Remote
	built, err := tunnel.Build(p)
	if err != nil {
		e.hop.reason = err.Error()
		return tunnel.Template{State: tunnel.TemplateNoRoute}
	}
	return built
}
