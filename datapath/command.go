// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"

	"weft/flowtable"
	"weft/internal/cpu"
	"weft/packet"
	"weft/port"
	"weft/tunnel"
)

// applyCommands executes the commands that wait in the ring, at most maxCommandsPerPass, and returns the
// number of executed ones. The frames of consecutive CmdRetry commands are looked up in one batch.
func (w *Worker) applyCommands() int {
	n := 0
	for ; n < maxCommandsPerPass; n++ {
		msg := w.commands.Next()
		if msg == nil {
			break
		}
		if !w.apply(msg) {
			w.sh.Counters.CommandsRefused++
		}
	}
	if n == 0 {
		return 0
	}
	w.runResumed()
	w.sh.Counters.Commands += uint64(n)
	w.commands.Release()
	return n
}

// apply executes one command, an encoded message. It returns false if the command is invalid.
func (w *Worker) apply(msg []byte) bool {
	if len(msg) < messageHeader {
		return false
	}
	op, arg, body := CommandOp(binary.LittleEndian.Uint32(msg)), binary.LittleEndian.Uint32(msg[4:]), msg[messageHeader:]
	if op == CmdRetry {
		return w.retry(arg)
	}
	w.runResumed() // commands take effect in order, so the frames of earlier CmdRetry commands go first
	switch op {
	case CmdInstall:
		return w.install(arg, body)
	case CmdRemove:
		w.kernelFlows.creditSlot(arg, w.now)
		return w.cache.Remove(arg)
	case CmdExecute:
		slot, h := w.held.answered(arg)
		if h == nil || len(body) > flowtable.MaxActions*actionBytes {
			return false
		}
		w.runHeld(slot, h, readActions(body, w.scratch[:0]))
		return true
	case CmdDropHeld:
		slot, h := w.held.answered(arg)
		if h == nil || len(body) != 4 {
			return false
		}
		if reason := binary.LittleEndian.Uint32(body); reason == uint32(packet.Consumed) {
			w.held.consume(slot)
		} else {
			w.held.drop(slot, dropReason(reason))
		}
		return true
	case CmdTemplate:
		return arg < uint32(len(w.sh.Templates)) && w.sh.Templates[arg].Parse(body)
	case CmdTermination:
		var end tunnel.Termination
		return end.Parse(body) && end.Port < port.MaxPorts && w.terminations.Set(arg, &end)
	case CmdRemoveTermination:
		w.terminations.Clear(arg)
		return true
	case CmdInject:
		return w.inject(arg, body)
	case CmdEndConnections:
		return w.endConnections(body)
	case CmdMeter:
		return w.meters.set(arg, body)
	case CmdHold:
		w.holding = arg != 0
		if !w.holding {
			// A spare engine process takes over with urgent scheduling (cpu.Urgent). All ports are attached now, so
			// ShortSlice ends the urgent scheduling. If it fails, only latency suffers.
			_ = cpu.ShortSlice()
		}
		return arg <= 1
	case CmdBFD:
		return w.setBFD(arg, body)
	case CmdCapture:
		return w.captures.set(arg, body)
	case CmdWeight:
		return w.accounting.setWeight(arg, body)
	}
	return false
}

func (w *Worker) install(slot uint32, body []byte) bool {
	const keys = 2 * 8 * flowtable.KeyWords
	if len(body) < keys || len(body) > keys+flowtable.MaxActions*actionBytes {
		return false
	}
	var key, mask flowtable.Key
	readWords(body, key[:])
	readWords(body[keys/2:], mask[:])
	if w.cache.Install(slot, &key, &mask, readActions(body[keys:], w.scratch[:0])) != flowtable.Installed {
		w.sh.Counters.InstallsRefused++
	}
	return true
}

// retry adds the held frame with reference ref to the batch, for another look-up. A frame that waits for the
// MAC address of a tunnel's next hop needs no look-up: retry executes its tunnel action at once. It returns
// false if the frame no longer waits.
func (w *Worker) retry(ref uint32) bool {
	slot, h := w.held.answered(ref)
	if h == nil || w.resumes(slot) {
		return false
	}
	if h.Then.Op != flowtable.OpNone {
		w.runResumed()
		list := w.scratch[:0]
		if options := w.sh.HeldFields[slot].Raw(); len(options) > 0 {
			list = flowtable.AppendTunOptions(list, options)
		}
		if h.ThenMeta != 0 {
			list = append(list, flowtable.Action{Op: flowtable.OpTunMeta, U64: h.ThenMeta})
		}
		w.runHeld(slot, h, append(list, h.Then))
		return true
	}
	w.resume(slot, h)
	if w.batch.Full() {
		w.runResumed()
	}
	return true
}

// inject executes CmdInject: it executes actions on a frame that the control process has made. It first
// copies the frame into a slot for held frames, as if the frame had been received and had matched no
// megaflow.
func (w *Worker) inject(inPort uint32, body []byte) bool {
	if len(body) < 4 || inPort >= port.MaxPorts {
		return false
	}
	n := binary.LittleEndian.Uint32(body)
	if body = body[4:]; n > flowtable.MaxActions || len(body) < int(n)*actionBytes {
		return false
	}
	frame := body[n*actionBytes:]
	if len(frame) > HeldBytes {
		return false
	}
	slot, ok := w.held.holdOwn(inPort, frame)
	if !ok {
		w.sh.dropFrom(inPort, packet.DropHeldFull)
		return true
	}
	w.runHeld(slot, &w.sh.Held[slot], readActions(body[:n*actionBytes], w.scratch[:0]))
	return true
}

// resumes reports whether the frame that waits in this slot is already in the batch.
func (w *Worker) resumes(slot uint32) bool {
	for i := range w.batch.Frames[:w.batch.N] {
		if w.batch.Frames[i].Held == slot+1 {
			return true
		}
	}
	return false
}

// runResumed handles the frames of the batch, which have waited in slots. It looks them up and executes their
// actions.
func (w *Worker) runResumed() {
	if w.batch.N == 0 {
		return
	}
	w.cursor, w.live, w.undone = 0, allOf(w.batch.N), 0
	w.classify(w.live) // frames without a tunnel have zero tunnel words
	w.execute()
	w.finish()
}

// runHeld executes actions, without a look-up, on the frame that waits in a slot.
func (w *Worker) runHeld(slot uint32, h *HeldFrame, actions []flowtable.Action) {
	w.resume(slot, h)
	w.performHeld(h, actions)
}

// performHeld executes actions, without a look-up, on a frame that has waited in a slot. It is the only frame
// of the batch.
func (w *Worker) performHeld(h *HeldFrame, actions []flowtable.Action) {
	w.cursor, w.live, w.undone = 0, 1, 0
	f := &w.batch.Frames[0]
	// Actions may have changed the headers before the frame was held, so the key is extracted again.
	w.dirty |= 1
	reason := flowtable.Extract(&w.batch, f, &w.keys[0])
	if reason == packet.DropNone && f.Undone() {
		reason = w.checkOffload(f)
		w.undone = 1
	}
	if reason != packet.DropNone {
		w.live = 0
		w.drop(f, reason)
	} else {
		*w.keys[0].Tunnel() = w.words[0]
		w.setTracked()
		w.captures.held(h, actions)
		done := w.captures.sampleRun(0, 1, actions)
		if done += w.trackGiven(actions[done:]); w.live != 0 {
			w.perform(0, actions, done, tailOf(actions))
		}
		w.recirculated()
	}
	w.finish()
}
