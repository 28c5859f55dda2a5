// SPDX-License-Identifier: Apache-2.0

package pipeline

import "sync/atomic"

// answerLimitsNS are the upper limits of the histogram's buckets, in nanoseconds. The last one is
// the time after which a worker drops a frame that still waits for its answer.
var answerLimitsNS = [...]uint64{
	20e3, 50e3, 100e3, 200e3, 500e3, 1e6, 2e6, 5e6, 10e6, 20e6, 50e6, 100e6, 500e6, 2e9,
}

// answerTimes is a histogram of the time from a miss to its answer. The time begins when the worker
// stores the frame and asks the control process. The goroutines that answer misses write the
// histogram, and any goroutine reads it.
type answerTimes struct {
	counts [len(answerLimitsNS) + 1]atomic.Uint64 // the last one counts longer times
	sumNS  atomic.Uint64
}

// add records answers that are given at the time nowNS. "since" has, for each answered frame, the
// time at which the worker stored it. All times are CLOCK_MONOTONIC in nanoseconds. add changes each
// bucket at most once.
func (t *answerTimes) add(nowNS uint64, since []uint64) {
	var counts [len(answerLimitsNS) + 1]uint64
	sumNS := uint64(0)
	for _, at := range since {
		ns := nowNS - min(at, nowNS)
		sumNS += ns
		i := 0
		for i < len(answerLimitsNS) && ns > answerLimitsNS[i] {
			i++
		}
		counts[i]++
	}
	for i, n := range counts {
		if n > 0 {
			t.counts[i].Add(n)
		}
	}
	t.sumNS.Add(sumNS)
}

// AnswerTimes is a copy of the histogram of the time from a miss to its answer.
type AnswerTimes struct {
	Count   uint64
	SumS    float64
	AtMostS map[float64]uint64 // by upper limit in seconds: number of answers within this time
}

func (t *answerTimes) read() AnswerTimes {
	h := AnswerTimes{AtMostS: map[float64]uint64{}}
	for i, ns := range answerLimitsNS {
		h.Count += t.counts[i].Load()
		h.AtMostS[float64(ns)/1e9] = h.Count
	}
	h.Count += t.counts[len(answerLimitsNS)].Load()
	h.SumS = float64(t.sumNS.Load()) / 1e9
	return h
}
