// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strconv"
	"strings"
	"testing"

	"weft/control/pipeline"
	"weft/control/tables"
	"weft/internal/clock"
	"weft/openflow/xlate"
)

func (f *fakes) queues(t *testing.T) []pipeline.QueueState {
	t.Helper()
	tx := f.d.configuration.Begin()
	defer tx.Commit()
	return f.d.pipeline.Bridge.Queues(tx)
}

// Queues and policing of a port are options. They survive a restart and keep their token buckets while
// other options change. The error of a wrong value names the wrong word.
func TestQoS(t *testing.T) {
	f := newFakes(t)
	for i, words := range []string{"qos=5:10M:2M,0:1G,7:999", "qos=1:64k ingress_policing_rate=1000 ingress_policing_kpkts_rate=2"} {
		number := strconv.Itoa(i + 1)
		if _, err := f.d.ports.Add("p"+number, append(strings.Fields(words), "type=vxlan", "vni="+number, "remote=192.0.2.1")); err != nil {
			t.Fatal(err)
		}
	}
	for words, want := range map[string]string{
		"qos=1":             "qos=1: expected queues",
		"qos=1:x":           "expected queues",
		"qos=1:5M:0":        "expected queues",
		"qos=1:5M,1:6M":     "expected queues",
		"qos=1:5M:1M:1M":    "expected queues",
		"qos=4294967296:5M": "expected queues",
		"qos=1:5000G":       "expected queues",
		"qos=" + strings.Repeat("1:1k,", 65) + "2:1k": "at most 64",
		"ingress_policing_rate=0":                     "ingress_policing_rate=0: expected a number",
		"ingress_policing_burst=5":                    "ingress_policing_rate= is missing",
		"ingress_policing_kpkts_burst=5":              "ingress_policing_kpkts_rate= is missing",
	} {
		if _, err := f.d.ports.Modify("p1", []string{words}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mod-port p1 %.60s: %v, want %q", words, err, want)
		}
	}
	check := func(event string, want ...pipeline.QueueState) {
		t.Helper()
		got := f.queues(t)
		slots := map[uint32]bool{}
		for i := range got {
			q := &got[i]
			if slots[q.Slot] || q.Slot < xlate.FirstPortBucket || q.Slot >= xlate.FirstPortBucket+xlate.MaxPortBuckets {
				t.Errorf("%s: queue %d of port %d has slot %d", event, q.ID, q.Port, q.Slot)
			}
			slots[q.Slot] = true
			q.AgeNS, q.Slot = 0, 0
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %+v, want %+v", event, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("%s: %+v, want %+v", event, got[i], want[i])
			}
		}
	}
	one := []pipeline.QueueState{queueState(1, 0, 1_000_000, 100_000), queueState(1, 5, 10_000, 2000), queueState(1, 7, 1, 525)}
	check("added", append(one, queueState(2, 1, 64, 525))...)
	list, err := tables.New(&f.d.configuration, f.d.pipeline.Bridge).ListQueues("p2")
	if err != nil || len(list) != 1 || list[0].Port != "p2" || list[0].Queue != 1 || list[0].RateKbps != 64 {
		t.Errorf("the API lists %+v, %v", list, err)
	}
	if _, err := tables.New(&f.d.configuration, f.d.pipeline.Bridge).ListQueues("p3"); err == nil {
		t.Error("the API lists the queues of no port")
	}
	first := f.queues(t)[0].Slot
	if _, err := f.d.ports.Modify("p2", []string{"qos=1:64k,2:1M"}); err != nil {
		t.Fatal(err)
	}
	f.end()
	f.begin()
	check("after a restart", append(one, queueState(2, 1, 64, 525), queueState(2, 2, 1000, 525))...)
	// a queue with another number is a new queue, even with the same rate
	began := clock.Monotonic()
	if _, err := f.d.ports.Modify("p2", []string{"qos=3:64k,2:1M"}); err != nil {
		t.Fatal(err)
	}
	for _, q := range f.queues(t) {
		if lived := clock.Monotonic() - began; q.Port == 2 && q.ID == 3 && q.AgeNS > lived {
			t.Errorf("queue %d is %d ns old, %d after the change", q.ID, q.AgeNS, lived)
		}
	}
	if _, err := f.d.ports.Modify("p2", []string{"qos="}); err != nil {
		t.Fatal(err)
	}
	check("removed", one...)
	if now := f.queues(t)[0].Slot; now != first {
		t.Errorf("port 1's first queue moved from slot %d to %d", first, now)
	}
}

func queueState(port, id, rate, depth uint32) pipeline.QueueState {
	s := pipeline.QueueState{Port: port}
	s.ID, s.Rate, s.Depth = id, rate, depth
	return s
}
