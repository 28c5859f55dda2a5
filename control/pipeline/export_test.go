// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"sync"

	"weft/control/megaflows"
	"weft/control/workers"
	"weft/datapath"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
)

// This file gives the tests of this package access to parts of a pipeline.

const ReadChunk, AskAgain, SaveDelay = readChunk, askAgain, saveDelay

func (pl *Pipeline) Mu() *sync.RWMutex          { return &pl.mu }
func (pl *Pipeline) Tables() *ofproto.Pipeline  { return pl.tables }
func (pl *Pipeline) Index() *megaflows.Index    { return pl.megaflows }
func (pl *Pipeline) Sweep()                     { pl.sweep() }
func (pl *Pipeline) Pull(m *megaflows.Megaflow) { pl.pull(m) }

func (pl *Pipeline) Evict(list []*megaflows.Megaflow) { pl.evict(list) }

func (pl *Pipeline) Revalidate(pick func(*megaflows.Megaflow) bool) { pl.revalidate(pick) }

func (pl *Pipeline) Answer(w *workers.Workers, misses []datapath.Upcall) {
	pl.answer(w, 0, misses, false)
}

func (pl *Pipeline) Row(r *ofproto.Rule) uint32 { return pl.rules.Row(r) }
func (pl *Pipeline) TakeRow() uint32            { return pl.rules.Take() }

func (pl *Pipeline) Other(number uint8) *Bridge { return pl.bridges[number] }

func (pl *Pipeline) Options() *xlate.OptionTable { return pl.options }
func (pl *Pipeline) Recircs() *xlate.RecircTable { return pl.recircs }
