// SPDX-License-Identifier: Apache-2.0

package xlate

import (
	"encoding/json"
	"errors"
	"fmt"

	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/ofproto"
	"weft/packet"
)

// The action controller(pause) (ovs-actions(7)) sends the frame to the controller. It ends the innermost
// clone, bucket or bridge that contains the action. The message has a continuation, with which the
// controller lets the translation continue later (NXT_RESUME). The continuation has the state of the
// translation, except the fields that the message shows and that the controller may change.

// maxContinuation is the largest size of a continuation in bytes. A longer one ends the translation with
// drop reason DropLoop. Each ControllerNote may have a continuation, so this limit and MaxNotes together
// limit the memory that a sender can occupy.
const maxContinuation = 4 << 10

// continuation is what a controller must send back to continue a translation after controller(pause). It
// is encoded as JSON.
type continuation struct {
	Bridge    uint8              `json:"bridge,omitempty"`
	InPort    uint32             `json:"in_port,omitempty"` // patch port through which the frame came to the bridge
	Queue     uint32             `json:"queue,omitempty"`
	Stack     []byte             `json:"stack,omitempty"`
	ActionSet string             `json:"action_set,omitempty"`
	Rest      []continuationList `json:"rest,omitempty"` // action lists that are not finished, in order of execution
}

// continuationList has the remaining actions of a list, with the table and cookie of their
// flow.
type continuationList struct {
	Table   uint8  `json:"table"`
	Cookie  uint64 `json:"cookie"` // ^0: no flow
	Actions string `json:"actions"`
}

// pausing is the state of a translation after controller(pause). No further action is executed before
// the end of the clone, bucket or bridge around the action.
type pausing struct {
	controller *openflow.Controller
	rule       *ofproto.Rule // the rule with the action
	table      uint8
	rest       []continuationList
}

// pause executes controller(pause). The action lists in which it is nested then stop, and leaveList
// records their remaining actions.
func (x *xlate) pause(c *openflow.Controller) {
	x.paused = &pausing{controller: c, rule: x.rule, table: x.table}
	x.note("pauses: NXT_RESUME executes the rest")
}

// leaveList records the remaining actions of a list for the continuation.
func (x *xlate) leaveList(actions []openflow.Action) {
	if len(actions) == 0 {
		return
	}
	list := continuationList{Table: x.table, Cookie: x.cookie(), Actions: openflow.FormatActions(actions, openflow.WithTLVs(nil, x.p.TLVs()))}
	x.paused.rest = append(x.paused.rest, list)
}

// cookie returns the cookie of the flow in execution; ^0: none.
func (x *xlate) cookie() uint64 {
	switch {
	case x.rule != nil:
		return x.rule.Cookie
	case x.resumed != nil:
		return x.resumed.Cookie
	}
	return ^uint64(0)
}

// endLists executes the action set after all action lists of a frame. If the frame was paused, in a
// list or in the set, it sends the frame to the controller.
func (x *xlate) endLists() {
	x.finishPause()
	x.runSet()
	x.finishPause()
}

// finishPause sends a paused frame to the controller. The continuation includes the action set. The
// exception is a pause within a bucket, because the action set does not belong to the bucket.
func (x *xlate) finishPause() {
	paused := x.paused
	if x.paused = nil; paused == nil || x.halted {
		return
	}
	c := continuation{Bridge: x.p.Bridge(), InPort: x.patch, Queue: x.queue, Stack: []byte(x.freezeStack()), Rest: paused.rest}
	if x.buckets == 0 {
		if len(x.actionSet) > 0 {
			c.ActionSet = openflow.FormatActions(x.actionSet, openflow.WithTLVs(nil, x.p.TLVs()))
		}
		x.actionSet = nil
	}
	text, err := json.Marshal(&c)
	if err != nil || len(text) > maxContinuation || x.halted {
		x.halt(packet.DropLoop)
		return
	}
	rule, table := x.rule, x.table
	x.rule, x.table, x.continuation = paused.rule, paused.table, string(text)
	whole := *paused.controller
	whole.MaxLen = openflow.WholeFrame // NXT_RESUME returns the frame, so the controller needs all of it
	x.controller(&whole)
	x.rule, x.table, x.continuation = rule, table, ""
}

// Resume continues the translation of a paused frame. text is the continuation, from the
// note of the frame. flow has the fields of the frame, as in Execute. cameIn is the number in
// the data path of the port on which the frame arrived. The translation's Mask has no
// meaning. Errors are *CodedError.
func Resume(p *ofproto.Tables, text string, flow *openflow.Flow, cameIn uint32, env Env) (Translation, error) {
	var c continuation
	err := json.Unmarshal([]byte(text), &c)
	lists := make([][]openflow.Action, len(c.Rest))
	for i := range lists {
		if err == nil {
			lists[i], err = openflow.ParseActions(c.Rest[i].Actions, openflow.WithTLVs(nil, p.TLVs()))
		}
		if err == nil {
			err = p.CheckReferences(lists[i])
		}
	}
	var set []openflow.Action
	if err == nil && c.ActionSet != "" {
		set, err = openflow.ParseActions(c.ActionSet, openflow.WithTLVs(nil, p.TLVs()))
	}
	stack, ok := thawStack(string(c.Stack))
	switch {
	case err == nil && !ok:
		err = errors.New("its stack is damaged")
	case err == nil && c.Bridge != p.Bridge():
		err = errors.New("it belongs to another bridge")
	}
	if err != nil {
		return Translation{}, &openflow.CodedError{Code: openflow.ErrResumeStale, Text: fmt.Sprintf("resume: the continuation no longer fits the switch: %v", err)}
	}
	x := xlates.Get().(*xlate)
	x.beginWith(p, flow, env)
	x.cameIn = cameIn
	if c.InPort != 0 {
		x.setInPort(c.InPort)
	}
	x.base, x.baseKeep = x.flow, x.keep
	x.actionSet, x.stack, x.queue, x.tracks = set, stack, c.Queue, true
	for i := range lists {
		if x.exited || x.halted {
			break
		}
		if x.paused != nil {
			x.paused.rest = append(x.paused.rest, c.Rest[i])
			continue
		}
		x.resumed = &c.Rest[i]
		x.continueWith(lists[i], c.Rest[i].Table)
	}
	x.resumed = nil
	x.endLists()
	var t Translation
	x.finish(&t)
	return t, nil
}

// beginWith begins the translation of a frame that comes from a controller and not from the datapath.
func (x *xlate) beginWith(p *ofproto.Tables, flow *openflow.Flow, env Env) {
	x.begin(p, (*flowtable.Key)(flow[:flowtable.KeyWords]), env, nil)
	copy(x.flow[flowtable.KeyWords:], flow[flowtable.KeyWords:])
	for w := flowtable.WTunID; w < flowtable.WTunID+flowtable.TunnelWords; w++ {
		x.keep[w] = 0 // the frame itself has no tunnel fields
	}
	for w := openflow.WTLVs; w < openflow.FlowWords; w++ {
		x.keep[w] = 0
	}
	x.base, x.baseKeep = x.flow, x.keep
	x.limitTags()
}
