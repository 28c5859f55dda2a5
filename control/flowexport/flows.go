// SPDX-License-Identifier: Apache-2.0

package flowexport

import (
	"container/list"
	"math/bits"
	"time"

	"weft/flowtable"
	"weft/packet"
)

// count counts packets. Its bytes are those of IP packets, without Ethernet headers.
type count struct{ packets, bytes uint64 }

func (c *count) add(packets, bytes uint64) {
	c.packets += packets
	c.bytes += packets * bytes
}

// Second indexes of totals.cast: the kind of a frame's destination address.
const (
	unicast = iota
	multicast
	broadcast
)

// totals are an exporter's counts since its start. cast counts frames by direction (0: frames that arrive,
// 1: frames that leave the bridge) and by the kind of their destination address.
type totals struct {
	ip, dropped, postMulticast count
	frameBytes, squares        uint64
	cast                       [2][3]uint64
	tcp                        [6]uint64 // packets with each TCP flag, by the flag's bit
}

// flow has the counts of the sampled frames with the same key. Its record is exported when it expires.
type flow struct {
	key             []byte
	shape           shape
	domain          uint32
	firstUS, lastUS uint64 // times of the first and the last sample, in microseconds since 1970

	ip, dropped, postMulticast             count
	frameBytes, squares, shortest, longest uint64
}

// flowKey identifies a cached flow of an exporter.
type flowKey struct {
	domain uint32
	shape  shape
	key    string
}

// ipfix is an IPFIX exporter: its cached flows, its totals, and the state of its messages.
type ipfix struct {
	config  *Config
	flows   map[flowKey]*list.Element
	oldest  *list.List // the flows (*flow) in the order of their first samples
	totals  totals
	domains map[uint32]*domain
	// message is the IPFIX message that is not sent yet. Its records belong to the domain "current".
	message []byte
	current uint32
}

// domain is the state of the messages of one observation domain (RFC 7011 section 3.1).
type domain struct {
	sequence  uint32 // number of records in the messages so far
	templates map[shape]time.Time
}

// maxDomains limits the domains of an exporter. Beyond it, the exporter forgets all domains: it then
// sends their templates again, and their sequence numbers begin at 0. A flow that reads obs_domain_id
// from a register can cause many domains.
const maxDomains = 1024

func newIPFIX(c *Config) *ipfix {
	return &ipfix{config: c, flows: map[flowKey]*list.Element{}, oldest: list.New(), domains: map[uint32]*domain{}}
}

// take adds a sample to its flow. fits reports whether the cache has room for one more flow. send gets
// complete messages. evicted is the number of flows that were exported early.
func (e *ipfix) take(s *Sample, k *flowtable.Key, in, out Interface, now time.Time, fits func() bool, send func([]byte)) (evicted int) {
	r := record{sample: s, key: k, in: in, out: out, tunnel: in.tunnelType()}
	form := shapeOf(s, k, e.config.Tunnels, e.config.VirtualID)
	key := keyOf(form, &r)
	f := e.sampled(s, k, form, now)
	f.key = key
	id := flowKey{f.domain, form, string(key)}
	if there := e.flows[id]; there != nil {
		there.Value.(*flow).merge(f)
		return 0
	}
	if e.config.ActiveTimeout == 0 || e.config.MaxFlows == 0 {
		e.export(f, endActive, now, send)
		return 0
	}
	for e.oldest.Len() > 0 && (e.oldest.Len() >= e.config.MaxFlows || !fits()) {
		e.expireOldest(endResources, now, send)
		evicted++
	}
	if !fits() {
		e.export(f, endResources, now, send)
		return evicted + 1
	}
	e.flows[id] = e.oldest.PushBack(f)
	return evicted
}

// sampled adds a sample to the totals, and returns a flow that has only this sample. A sample that was
// taken with probability 1/N counts as N frames.
func (e *ipfix) sampled(s *Sample, k *flowtable.Key, form shape, now time.Time) *flow {
	n := uint64(1<<32-1) / uint64(max(s.Probability, 1))
	size := uint64(max(s.Len-etherLen(k), 0))
	us := uint64(now.UnixMicro())
	f := &flow{shape: form, domain: e.config.Domain, firstUS: us, lastUS: us, frameBytes: n * uint64(s.Len)}
	if e.config.OfSet {
		f.domain = s.Domain
	}
	t, way := &e.totals, 0
	if s.Egress {
		way = 1
	}
	if form&shapeIP == 0 {
		size = 0
	}
	f.ip.add(n, size)
	t.ip.add(n, size)
	if s.Outputs == 0 && !s.Unknown {
		f.dropped.add(n, size)
		t.dropped.add(n, size)
	}
	f.squares, f.shortest, f.longest = n*size*size, size, size
	t.squares, t.frameBytes = t.squares+f.squares, t.frameBytes+f.frameBytes
	switch to := k.EthDst(); {
	case to == 0xffffffffffff:
		t.cast[way][broadcast] += n
	case to>>40&1 == 0:
		t.cast[way][unicast] += n
	default:
		t.cast[way][multicast] += n
		if s.Egress {
			f.postMulticast.add(n, size)
			t.postMulticast.add(n, size)
		}
	}
	if form&shapeTCP != 0 {
		for flags := uint8(k[flowtable.WIP]) & 0x3f; flags != 0; flags &= flags - 1 {
			t.tcp[bits.TrailingZeros8(flags)] += n
		}
	}
	return f
}

func (f *flow) merge(o *flow) {
	f.lastUS = o.lastUS
	for _, c := range []struct{ sum, part *count }{{&f.ip, &o.ip}, {&f.dropped, &o.dropped}, {&f.postMulticast, &o.postMulticast}} {
		c.sum.packets += c.part.packets
		c.sum.bytes += c.part.bytes
	}
	f.frameBytes += o.frameBytes
	f.squares += o.squares
	f.shortest, f.longest = min(f.shortest, o.shortest), max(f.longest, o.longest)
}

// expire exports the flows whose first sample is older than the active timeout, or all flows if forced.
func (e *ipfix) expire(now time.Time, forced bool, send func([]byte)) {
	limit := uint64(now.Add(-e.config.ActiveTimeout).UnixMicro())
	for front := e.oldest.Front(); front != nil && (forced || front.Value.(*flow).firstUS <= limit); front = e.oldest.Front() {
		reason := uint8(endActive)
		if forced {
			reason = endForced
		}
		e.expireOldest(reason, now, send)
	}
}

func (e *ipfix) expireOldest(reason uint8, now time.Time, send func([]byte)) {
	front := e.oldest.Front()
	f := e.oldest.Remove(front).(*flow)
	delete(e.flows, flowKey{f.domain, f.shape, string(f.key)})
	e.export(f, reason, now, send)
}

// export appends the record of a flow to the message. If the template is due, it comes before the
// record.
func (e *ipfix) export(f *flow, reason uint8, now time.Time, send func([]byte)) {
	d := e.domains[f.domain]
	if d == nil {
		if len(e.domains) == maxDomains {
			clear(e.domains)
		}
		d = &domain{templates: map[shape]time.Time{}}
		e.domains[f.domain] = d
	}
	exportUS := exportTime(now)
	var sets []byte
	if sent, known := d.templates[f.shape]; !known || now.Sub(sent) >= e.config.TemplateInterval {
		sets = appendTemplate(sets, f.shape)
		d.templates[f.shape] = now
	}
	sets = appendRecord(sets, f.shape, &record{flow: f, totals: &e.totals, virtual: e.config.VirtualID, exportUS: exportUS, reason: reason})
	if len(e.message) > 0 && (e.current != f.domain || len(e.message)+len(sets) > maxMessage || be.Uint32(e.message[4:]) != uint32(exportUS/1e6)) {
		e.flush(send)
	}
	if len(e.message) == 0 {
		e.message, e.current = beginMessage(f.domain, d.sequence, exportUS), f.domain
	}
	e.message = append(e.message, sets...)
	d.sequence++
}

// flush sends the message with the records so far.
func (e *ipfix) flush(send func([]byte)) {
	if len(e.message) > 0 {
		send(endMessage(e.message))
		e.message = nil
	}
}

// keyOfFrame extracts the key of a sampled frame, although the sample has only the frame's first bytes.
func keyOfFrame(s *Sample) (k flowtable.Key, ok bool) {
	var b packet.Batch
	frame, header := b.Next()
	copy(header[:], s.Data)
	n := min(s.Len, len(header))
	if n < s.Len {
		b.AddSpan(frame, 1, uint32(s.Len-n)) // the span stands for the missing bytes, which Extract does not read
	}
	b.Commit(frame, n)
	return k, flowtable.Extract(&b, frame, &k) == packet.DropNone
}
