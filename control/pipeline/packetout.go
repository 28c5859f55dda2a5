package pipeline

import (
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

// PacketOut executes actions on a frame of the operator's. When it returns, a worker
// has executed them.
func (d *Pipeline) PacketOut(text string) (api.PacketSent, error) {
	d.mu.RLock()
	view := d.view
	d.mu.RUnlock()
	out, err := openflow.ParsePacketOut(text, view)
	if err != nil {
		return api.PacketSent{}, usererr.Mark(err)
	}
	if err := fillFlow(&out); err != nil {
		return api.PacketSent{}, err
	}
	// As with a first frame: what it teaches is in the tables before it goes.
	t, taught, err := d.inject(&out, true)
	if err == nil && taught {
		d.learnBatch([]lesson{{flows: t.Learned}})
		t, _, err = d.inject(&out, false)
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

// fillFlow adds to the flow what the frame says.
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

// inject translates the actions and has the first worker execute them; with
// learnFirst, not if the frame teaches flows that are not in the tables. What has an
// error has sent, counted and taught nothing.
func (d *Pipeline) inject(out *openflow.PacketOut, learnFirst bool) (t openflow.Translation, taught bool, err error) {
	d.change.Lock() // settle must not outlive the workers
	defer d.change.Unlock()
	d.mu.RLock()
	w, now := d.workers, clock.Monotonic()
	t, err = d.tables.Execute(out.Actions, &out.Flow, d.env())
	switch {
	case err != nil:
		err = usererr.Mark(err)
	case t.Drop == packet.DropLoop:
		err = usererr.Errorf("actions: the frame would go through more tables, or deeper, than one may; expected actions that end")
	case w.Gone():
		err = workers.ErrGone
	default:
		taught = learnFirst && d.teaches(&t)
	}
	if err != nil || taught {
		d.mu.RUnlock()
		return t, taught, err
	}
	inPort := uint32(out.Flow[flowtable.WPort] >> 32)
	if inPort >= port.MaxPorts {
		inPort = 0
	}
	places := make([]uint32, len(t.Rules))
	for i, r := range t.Rules {
		places[i] = d.places[r.Slot]
	}
	if !w.Push(0, datapath.AppendInject(nil, inPort, t.Actions, out.Frame)) {
		err = workers.ErrGone
	}
	d.mu.RUnlock()
	if err == nil {
		err = w.WaitApplied()
	}
	if err != nil {
		return t, false, err
	}
	if t.Learn.Valid {
		d.learn(t.Learn, now)
	}
	d.creditExecuted([]executedFrame{{t.Rules, t.Groups, t.Finished, t.Learned, places, uint64(len(out.Frame))}}, now)
	return t, false, nil
}
