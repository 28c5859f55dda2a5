// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"weft/control/change"
	"weft/control/usererr"
	"weft/datapath"
	"weft/openflow/xlate"
)

// Queues and policing of ports are options, so that they are saved, exported and applied like others.
// Each is a token bucket of the workers, which drop frames that exceed it.

// qosOptions are the options for queues and policing. Ports with a device and tunnels have them.
var qosOptions = optionTable{
	"qos":                         {check: queueWords},
	"ingress_policing_rate":       {check: numberIn(1, 4_000_000_000)},
	"ingress_policing_burst":      {check: numberIn(1, 4_000_000_000)},
	"ingress_policing_kpkts_rate": {check: numberIn(1, 4_000_000)},
	"ingress_policing_kpkts_burst": {
		check: numberIn(1, 4_000_000)},
}

const (
	// The burst of a queue without BURST is what its rate sends in a tenth of a second, but at least
	// leastBurst kilobits, so that a large frame of 64 KiB passes.
	leastBurst     = 525
	burstOfASecond = 10
	// defaultBurst (kilobits) and defaultKpktsBurst (thousands of packets) are Open vSwitch's defaults
	// for policing.
	defaultBurst      = 8000
	defaultKpktsBurst = 16
	maxKilobits       = 4_000_000_000
)

func queueWords(value string) string {
	if _, ok := parseQueues(value); !ok {
		return "queues with a rate and a burst in bits, as in 0:1G,1:10M:2M, at most " + strconv.Itoa(xlate.MaxQueues)
	}
	return ""
}

// parseQueues parses QUEUE:RATE[:BURST],... and returns the queues by number.
func parseQueues(value string) (queues []xlate.Queue, ok bool) {
	for word := range strings.SplitSeq(value, ",") {
		parts := strings.Split(word, ":")
		if len(parts) < 2 || len(parts) > 3 {
			return nil, false
		}
		id, err := strconv.ParseUint(parts[0], 10, 32)
		rate, okRate := parseKilobits(parts[1])
		if err != nil || !okRate {
			return nil, false
		}
		burst := max(rate/burstOfASecond, leastBurst)
		if len(parts) == 3 {
			if burst, ok = parseKilobits(parts[2]); !ok {
				return nil, false
			}
		}
		queues = append(queues, xlate.Queue{ID: uint32(id), TokenBucket: xlate.TokenBucket{Rate: rate, Depth: burst}})
	}
	slices.SortFunc(queues, func(a, b xlate.Queue) int { return cmp.Compare(a.ID, b.ID) })
	for i := range queues {
		if i > 0 && queues[i].ID == queues[i-1].ID {
			return nil, false
		}
	}
	return queues, len(queues) <= xlate.MaxQueues
}

// parseKilobits parses a number of bits with one of the suffixes k, M and G, and returns
// kilobits, at least 1.
func parseKilobits(text string) (uint32, bool) {
	unit := uint64(1)
	for i, suffix := range []string{"k", "M", "G"} {
		if digits, found := strings.CutSuffix(text, suffix); found {
			text = digits
			for range i + 1 {
				unit *= 1000
			}
		}
	}
	n, err := strconv.ParseUint(text, 10, 48)
	if err != nil || n == 0 || n > maxKilobits*1000/unit {
		return 0, false
	}
	return uint32((n*unit + 999) / 1000), true
}

// fillQoS stores the port's queues and policing in "info". setBuckets later assigns their token
// buckets an index.
func fillQoS(info *xlate.PortInfo, values map[string]string) error {
	if values["qos"] != "" {
		info.Queues, _ = parseQueues(values["qos"])
	}
	police := func(rate, burst string, packets bool, unit, usual uint32) error {
		if values[rate] == "" {
			if values[burst] != "" {
				return usererr.Errorf("%s= is missing; %s=%s needs it", rate, burst, values[burst])
			}
			return nil
		}
		n, _ := strconv.ParseUint(values[rate], 10, 32) // valid: the options are checked
		depth := uint64(usual)
		if values[burst] != "" {
			depth, _ = strconv.ParseUint(values[burst], 10, 32)
		}
		info.Policing = append(info.Policing, xlate.TokenBucket{Packets: packets, Rate: uint32(n) * unit, Depth: uint32(depth) * unit})
		return nil
	}
	if err := police("ingress_policing_rate", "ingress_policing_burst", false, 1, defaultBurst); err != nil {
		return err
	}
	return police("ingress_policing_kpkts_rate", "ingress_policing_kpkts_burst", true, 1000, defaultKpktsBurst)
}

// bucketKey identifies a token bucket: a queue of a port, or one of the port's two policed rates,
// bits or packets.
type bucketKey struct {
	port    uint32
	queue   bool
	number  uint32
	packets bool
}

// eachBucket calls visit for each token bucket of the port: its queues, and its policed rates.
func (p *switchPort) eachBucket(visit func(key bucketKey, b *xlate.TokenBucket)) {
	for i := range p.info.Queues {
		q := &p.info.Queues[i]
		visit(bucketKey{port: p.saved.Number, queue: true, number: q.ID}, &q.TokenBucket)
	}
	for i := range p.info.Policing {
		b := &p.info.Policing[i]
		visit(bucketKey{port: p.saved.Number, packets: b.Packets}, b)
	}
}

// checkBuckets returns an error if the new or changed port p would raise the number of all ports' token
// buckets above MaxPortBuckets.
func (ps *Ports) checkBuckets(p *switchPort) error {
	own, all := 0, 0
	p.eachBucket(func(bucketKey, *xlate.TokenBucket) { own++ })
	for number, o := range ps.byNumber {
		if number != p.saved.Number {
			o.eachBucket(func(bucketKey, *xlate.TokenBucket) { all++ })
		}
	}
	if own > 0 && own+all > xlate.MaxPortBuckets {
		return usererr.Errorf("%s: expected at most %d queues and policed rates of all ports; %d are in use",
			p.saved.Name, xlate.MaxPortBuckets, all)
	}
	return nil
}

// setBuckets assigns each token bucket an index in the workers' array of buckets, and sends new and
// changed buckets to the workers. A bucket keeps its index as long as it exists.
func (ps *Ports) setBuckets(tx *change.Tx) {
	slots, used := map[bucketKey]uint32{}, map[uint32]bool{}
	var fresh []bucketKey
	for _, number := range slices.Sorted(maps.Keys(ps.byNumber)) {
		ps.byNumber[number].eachBucket(func(key bucketKey, _ *xlate.TokenBucket) {
			if slot, had := ps.buckets[key]; had {
				slots[key], used[slot] = slot, true
			} else {
				fresh = append(fresh, key)
			}
		})
	}
	next, begins := uint32(xlate.FirstPortBucket), map[uint32]bool{}
	for _, key := range fresh {
		for used[next] {
			next++
		}
		slots[key], used[next], begins[next] = next, true, true
	}
	ps.buckets = slots
	meters := map[uint32]datapath.Meter{}
	for _, p := range ps.byNumber {
		p.eachBucket(func(key bucketKey, b *xlate.TokenBucket) {
			if slot := slots[key]; b.Slot != slot {
				b.Slot = slot // changes only ports that are in no view yet, because translations read views without a lock
			}
			meters[b.Slot] = datapath.NewMeter(b.Packets, b.Rate, b.Depth)
		})
	}
	ps.pipeline.SetPortMeters(tx, meters, begins)
}
