// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"slices"

	"weft/control/change"
	"weft/control/usererr"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/clock"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/openflow/xlate"
	"weft/packet"
)

// Send executes the actions of a packet-out on its frame. If there are learn actions among them, it
// adds their flows first. It returns the result after a worker has executed the actions. If it
// returns an error, nothing has changed. Send takes the configuration lock.
func (b *Bridge) Send(out *openflow.PacketOut) (xlate.Translation, error) {
	if err := fillFlow(out); err != nil {
		return xlate.Translation{}, &openflow.CodedError{Code: openflow.ErrBadPacket, Text: err.Error()}
	}
	inPort := b.View().Datapath(out.Flow.Key().InPort())
	return b.inject(out.Frame, inPort, func(env xlate.Env) (xlate.Translation, error) {
		return xlate.Execute(b.tables, out.Actions, &out.Flow, env)
	})
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

// inject calls "translate", which looks up a frame in the tables, and executes the resulting actions
// on the frame. inPort is the datapath number of the port on which the frame is assumed to arrive.
// inject holds Pipeline.mu during the call of "translate".
func (b *Bridge) inject(frame []byte, inPort uint32, translate func(xlate.Env) (xlate.Translation, error)) (t xlate.Translation, err error) {
	pl := b.pl
	// No transaction can replace the workers meanwhile.
	return change.Result(pl.configuration, func(tx *change.Tx) (t xlate.Translation, err error) {
		if b.closed {
			return t, errClosed
		}
		pl.mu.RLock()
		t, err = translate(b.env())
		pl.mu.RUnlock()
		if err == nil {
			err = checkLoop(&t)
		}
		if err == nil {
			err = pl.perform(tx, frame, inPort, &t)
		}
		return t, err
	})
}

// checkLoop returns an error if the actions of a packet-out exceed the limit for nested look-ups.
func checkLoop(t *xlate.Translation) error {
	if t.Drop == packet.DropLoop {
		return usererr.Errorf("actions: the frame would pass more tables, or nest deeper, than the limits allow; expected actions without a loop")
	}
	return nil
}

// perform makes a worker execute the actions in t on a frame, and returns when it has done so.
// inPort is the datapath number of the port on which the frame is assumed to arrive. If the frame's
// learn actions add flows, perform first adds them and updates the megaflows.
func (pl *Pipeline) perform(tx *change.Tx, frame []byte, inPort uint32, t *xlate.Translation) error {
	pl.mu.RLock()
	// The list has no rules that a later change of the same bundle has removed.
	t.Rules = slices.DeleteFunc(t.Rules, func(r *ofproto.Rule) bool { return r.Removed })
	w, now, rows, teaches := pl.workers, clock.Monotonic(), pl.rules.Rows(t.Rules), pl.learner.teaches(t)
	pl.mu.RUnlock()
	if w.Gone() {
		return workers.ErrGone
	}
	if teaches {
		pl.learner.teach(tx, []lesson{{flows: t.Learned}})
		tx.Settle()
	}
	if !w.Push(0, datapath.AppendInject(nil, inPort, t.Actions, frame)) {
		return workers.ErrGone
	}
	if err := w.WaitApplied(); err != nil {
		return err
	}
	pl.learn(t.Learns, now)
	pl.creditExecuted([]executedFrame{{t.Rules, t.Missed, t.Groups, t.Patches, t.Finished, t.Learned, rows, uint64(len(frame))}}, now)
	return nil
}
