// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"errors"

	"weft/api"
	"weft/control/usererr"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
	"weft/packet"
	"weft/port"
)

// PacketOut sends an operator's frame. It returns after a worker has executed the
// actions.
func (pl *Pipeline) PacketOut(text string) (api.PacketSent, error) {
	pl.mu.RLock()
	view := pl.view
	pl.mu.RUnlock()
	out, err := openflow.ParsePacketOut(text, view)
	if err != nil {
		return api.PacketSent{}, usererr.Mark(err)
	}
	if err := fillFlow(&out); err != nil {
		return api.PacketSent{}, err
	}
	t, err := pl.inject(&out)
	var input *openflow.CodedError
	if errors.As(err, &input) {
		err = usererr.Mark(err)
	}
	if err != nil {
		return api.PacketSent{}, err
	}
	sent := api.PacketSent{Actions: openflow.FormatDatapathActions(t.Actions, view)}
	if t.Drop != packet.DropNone {
		sent.Drop = t.Drop.String()
	}
	return sent, nil
}

func fillFlow(out *openflow.PacketOut) error {
	var b packet.Batch
	frame, header := b.Next()
	n := copy(header[:], out.Frame)
	if n < len(out.Frame) {
		b.AddSpan(frame, packet.Address(out.Frame[n:]), uint32(len(out.Frame)-n))
	}
	b.Commit(frame, n)
	var key flowtable.Key
	if why := flowtable.Extract(&b, frame, &key); why != packet.DropNone {
		return usererr.Errorf("packet: expected a whole frame; a port would drop this one as %s", why)
	}
	for i, word := range key {
		out.Flow[i] |= word
	}
	return nil
}

// inject makes the first worker execute a packet-out. The flows of its learn actions
// are in force before. An error has no effect.
func (pl *Pipeline) inject(out *openflow.PacketOut) (t openflow.Translation, err error) {
	pl.change.Lock() // keeps the workers from being replaced
	defer pl.change.Unlock()
	pl.mu.RLock()
	w, now := pl.workers, clock.Monotonic()
	t, err = pl.tables.Execute(out.Actions, &out.Flow, pl.env())
	rows, teaches := pl.rules.rowsOf(t.Rules), pl.teaches(&t)
	pl.mu.RUnlock()
	switch {
	case err != nil: // PacketOut turns the error into one for the operator
	case t.Drop == packet.DropLoop:
		err = usererr.Errorf("actions: the frame would pass more tables, or nest deeper, than the limits allow; expected actions without a loop")
	case w.Gone():
		err = workers.ErrGone
	}
	if err != nil {
		return t, err
	}
	if teaches {
		pl.teach([]lesson{{flows: t.Learned}})
	}
	inPort := uint32(out.Flow[flowtable.WPort] >> 32)
	if inPort >= port.MaxPorts {
		inPort = 0
	}
	if !w.Push(0, datapath.AppendInject(nil, inPort, t.Actions, out.Frame)) {
		return t, workers.ErrGone
	}
	if err := w.WaitApplied(); err != nil {
		return t, err
	}
	if t.Learn.Valid {
		pl.learn(t.Learn, now)
	}
	pl.creditExecuted([]executedFrame{{t.Rules, t.Groups, t.Finished, t.Learned, rows, uint64(len(out.Frame))}}, now)
	return t, nil
}
