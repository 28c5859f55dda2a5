// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync"
	"time"

	"weft/control/change"
	"weft/control/megaflows"
	"weft/control/workers"
	"weft/datapath"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// This file gives the tests of this package access to parts of a pipeline.

const ReadChunk, AskAgain, SaveDelay, MissBatch = readChunk, askAgain, saveDelay, missBatch

func (pl *Pipeline) Mu() *sync.RWMutex          { return &pl.mu }
func (pl *Pipeline) Tables() *ofproto.Tables    { return pl.tables }
func (pl *Pipeline) Index() *megaflows.Index    { return pl.megaflows }
func (pl *Pipeline) Sweep()                     { pl.sweep() }
func (pl *Pipeline) Pull(m *megaflows.Megaflow) { pl.pull(m) }

func (pl *Pipeline) Evict(tx *change.Tx, list []*megaflows.Megaflow) { pl.evict(tx, list) }

func (pl *Pipeline) Revalidate(tx *change.Tx, pick func(*megaflows.Megaflow) bool) {
	pl.revalidate(tx, pick)
}

func (pl *Pipeline) Answer(w *workers.Workers, misses []datapath.Upcall) {
	pl.answer(w, 0, misses, false)
}

// AnswerWithin answers the first misses of worker 0. It returns the number of answered ones.
func (pl *Pipeline) AnswerWithin(limit time.Duration, misses []datapath.Upcall) int {
	return len(pl.answerFirst(pl.workers, 0, misses, nil, limit))
}

// StaleOf returns the megaflows that a revalidation removes whose time is used up. It takes the
// translations of this owner as costly.
func (pl *Pipeline) StaleOf(owner uint32) []*megaflows.Megaflow {
	r := revalidation{pl: pl, pick: anyMegaflow, spent: revalidateTime + 1,
		costs: map[uint32]*ownerCost{owner: {translations: 10, spent: 10*costlyTranslation + 1}}}
	for list := pl.megaflows.List(); len(list) > 0; {
		list = list[r.chunk(list):]
	}
	return r.stale
}

func (pl *Pipeline) Row(r *ofproto.Rule) uint32 { return pl.rules.Row(r) }
func (pl *Pipeline) TakeRow() uint32            { return pl.rules.Take() }

func (pl *Pipeline) Bridges() []*Bridge { return pl.bridges }

func (pl *Pipeline) Other(number uint8) *Bridge { return pl.bridges[number] }

func (pl *Pipeline) Options() *xlate.OptionTable { return pl.options }
func (pl *Pipeline) Recircs() *xlate.RecircTable { return pl.recircs }
