// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"weft/control/usererr"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
	"weft/packet"
	"weft/port"
)

// Send executes the actions of a packet-out on its frame, after the flows of their learn
// actions are in force. It returns after a worker has executed them, with the
// translation of the actions. An error has no effect. Send takes the lock of changes.
func (pl *Pipeline) Send(request *openflow.PacketOut) (openflow.Translation, error) {
	if err := fillFlow(request); err != nil {
		return openflow.Translation{}, &openflow.CodedError{Code: openflow.ErrBadPacket, Text: err.Error()}
	}
	return pl.inject(request)
}

func fillFlow(request *openflow.PacketOut) error {
	var b packet.Batch
	frame, header := b.Next()
	n := copy(header[:], request.Frame)
	if n < len(request.Frame) {
		b.AddSpan(frame, packet.Address(request.Frame[n:]), uint32(len(request.Frame)-n))
	}
	b.Commit(frame, n)
	var key flowtable.Key
	if reason := flowtable.Extract(&b, frame, &key); reason != packet.DropNone {
		return usererr.Errorf("packet: expected a whole frame; a port would drop this one as %s", reason)
	}
	for i, word := range key {
		request.Flow[i] |= word
	}
	return nil
}

func (pl *Pipeline) inject(request *openflow.PacketOut) (t openflow.Translation, err error) {
	pl.change.Lock() // keeps the workers from being replaced
	defer pl.change.Unlock()
	pl.mu.RLock()
	w, now := pl.workers, clock.Monotonic()
	t, err = pl.tables.Execute(request.Actions, &request.Flow, pl.env())
	rows, teaches := pl.rules.rowsOf(t.Rules), pl.teaches(&t)
	pl.mu.RUnlock()
	switch {
	case err != nil: // has a code
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
	inPort := uint32(request.Flow[flowtable.WPort] >> 32)
	if inPort >= port.MaxPorts {
		inPort = 0
	}
	if !w.Push(0, datapath.AppendInject(nil, inPort, t.Actions, request.Frame)) {
		return t, workers.ErrGone
	}
	if err := w.WaitApplied(); err != nil {
		return t, err
	}
	if t.Learn.Valid {
		pl.learn(t.Learn, now)
	}
	pl.creditExecuted([]executedFrame{{t.Rules, t.Groups, t.Finished, t.Learned, rows, uint64(len(request.Frame))}}, now)
	return t, nil
}
