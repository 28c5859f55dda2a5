// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"weft/api"
	"weft/control/usererr"
	"weft/flowtable"
	"weft/openflow"
	"weft/openflow/xlate"
)

// Tracer translates a frame without side effects. Its tables must not change between calls.
type Tracer interface {
	Trace(key *flowtable.Key, visit func(xlate.TraceStep)) xlate.Translation
	// KeepOptions stores raw Geneve options for the next traces. It returns their hash, which stands for
	// the options in the flow key of a frame.
	KeepOptions(raw []byte) uint64
}

// maxFollowed limits how often a trace looks a frame up again, for example after connection tracking.
const maxFollowed = 16

// BridgeNames returns the name of a bridge, and the names of its ports. The names are nil if the trace
// shows ports by number.
type BridgeNames func(bridge uint8) (name string, ports openflow.Names)

// Trace follows a hypothetical frame through the flow tables. flow has the frame's fields in match syntax,
// and view gives the numbers of the ports that flow names. ctNext is the ct_state of the frame after each
// ct action; "" means a new connection. In the result, names gives the names of ports, and the function
// steps gives those in the steps of each bridge.
func Trace(tables Tracer, view, names openflow.Names, steps BridgeNames, flow, ctNext string) (api.Trace, error) {
	if flow == "" {
		return api.Trace{}, usererr.Errorf("flow: a frame is missing; expected match fields as in in_port=1,tcp,nw_dst=10.0.0.1")
	}
	if ctNext == "" {
		ctNext = "+new+trk"
	}
	key, options, err := openflow.ParseFrame(flow, view)
	if err != nil {
		return api.Trace{}, usererr.Mark(err)
	}
	if len(options) > 0 {
		key[flowtable.WTunOpts] = tables.KeepOptions(options)
	}
	given, err := openflow.ParseFilter(flow, view)
	if err != nil {
		return api.Trace{}, usererr.Mark(err)
	}
	state, err := openflow.ParseFilter("ct_state="+ctNext, view)
	if err != nil {
		return api.Trace{}, usererr.Mark(err)
	}
	c := trace{tables: tables, steps: steps, ctState: state.Match.Unpack().Value[flowtable.WCT], names: names, left: maxFollowed}
	out := c.follow(&key)
	out.Flow = given.Match.Format(c.names)
	return out, nil
}

// trace is the state of one call of Trace.
type trace struct {
	tables  Tracer
	names   openflow.Names
	steps   BridgeNames
	ctState uint64 // ct_state that every ct action gives the frame
	left    int    // number of further look-ups that are allowed
}

func (c *trace) follow(key *flowtable.Key) api.Trace {
	out := api.Trace{Steps: []api.TraceStep{}}
	var tracked []flowtable.Key         // keys for the look-ups after ct actions
	known := map[uint32]flowtable.Key{} // keys for other look-ups, by recirc_id
	t := c.tables.Trace(key, func(s xlate.TraceStep) {
		bridge, names := c.steps(s.Bridge)
		out.Steps = append(out.Steps, traceStep(&s, bridge, names))
		if s.Recirc != 0 {
			k := flowtable.Key(s.Flow[:flowtable.KeyWords])
			k[flowtable.WPort] = key[flowtable.WPort]
			known[s.Recirc] = k
		}
		if s.Action != nil && s.Action.Kind == openflow.ActCT && s.Action.CT.Table != openflow.TableAll {
			k := flowtable.Key(s.Flow[:flowtable.KeyWords])
			k[flowtable.WPort] = key[flowtable.WPort] // the flow may have the number of a patch port
			k[flowtable.WCT] = c.ctState | uint64(s.Action.CT.Zone)
			tracked = append(tracked, k)
		}
	})
	match := openflow.MatchOf(key, &t.Mask)
	out.Megaflow = openflow.FormatMatch(&match, c.names)
	out.Actions = openflow.FormatDatapathActions(t.Actions, c.names)
	if t.Drop != 0 {
		out.Drop = t.Drop.String()
	}
	for i := range t.Actions {
		if a := &t.Actions[i]; a.Op == flowtable.OpRecirc && c.left > 0 {
			next, ok := known[a.U32]
			if !ok && len(tracked) == 0 {
				continue
			}
			if !ok {
				next, tracked = tracked[0], tracked[1:]
			}
			c.left--
			next.SetRecirc(a.U32)
			then := c.follow(&next)
			then.Tracked = !ok
			then.Flow = openflow.FormatMatch(FrameMatch(&next), c.names)
			out.Then = append(out.Then, then)
		}
	}
	return out
}

// traceStep converts a step of a translation to the API's type.
func traceStep(s *xlate.TraceStep, bridge string, names openflow.Names) api.TraceStep {
	step := api.TraceStep{Bridge: bridge, Depth: s.Depth, Table: s.Table, Note: s.Note}
	switch {
	case s.Lookup:
		step.Kind = api.StepTable
		if s.Rule != nil {
			step.Rule = &api.TraceRule{
				Priority: int(s.Rule.Priority), Cookie: s.Rule.Cookie,
				Match:   s.Rule.Match.Format(names),
				Actions: openflow.FormatActions(s.Rule.Actions, names),
			}
		}
	case s.Action != nil:
		step.Kind = api.StepAction
		step.Action = openflow.FormatActions([]openflow.Action{*s.Action}, names)
	default:
		step.Kind = api.StepNote
	}
	return step
}
