package control

import (
	"weft/api"
	"weft/control/observe"
	"weft/flowtable"
	"weft/openflow"
)

// maxTracked bounds how often a traced frame is looked up again behind tracking.
const maxTracked = 16

// trace follows a made-up frame through the tables; ctNext is the ct_state that
// each tracking finds, "" for a new connection. Nothing counts the frame and
// nothing is learnt from it.
func (d *Pipeline) trace(flow, ctNext string, words portWords) (api.Trace, error) {
	if flow == "" {
		return api.Trace{}, inputf("flow: a frame is missing; expected match fields as in in_port=1,tcp,nw_dst=10.0.0.1")
	}
	if ctNext == "" {
		ctNext = "+new+trk"
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	key, err := openflow.ParseKey(flow, d.view)
	if err != nil {
		return api.Trace{}, asInput(err)
	}
	given, err := openflow.ParseFilter(flow, d.view)
	if err != nil {
		return api.Trace{}, asInput(err)
	}
	state, err := openflow.ParseFilter("ct_state="+ctNext, d.view)
	if err != nil {
		return api.Trace{}, asInput(err)
	}
	left := maxTracked
	out := d.traceKey(&key, state.Match.Unpack().Value[flowtable.WCT], d.names(words), &left)
	out.Flow = given.Match.Format(d.names(words))
	return out, nil
}

// traceKey is trace of a key, and of what it becomes behind tracking, left times
// at most. Caller holds mu.
func (d *Pipeline) traceKey(key *flowtable.Key, ctState uint64, names openflow.Names, left *int) api.Trace {
	out := api.Trace{Steps: []api.TraceStep{}}
	var tracked []flowtable.Key // of ct actions that name a table, as they were then
	t := d.tables.Trace(key, d.env(), func(s openflow.TraceStep) {
		out.Steps = append(out.Steps, traceStep(&s, names))
		if s.Action != nil && s.Action.Kind == openflow.ActCT && s.Action.CT.Table != openflow.TableAll {
			k := flowtable.Key(s.Flow[:flowtable.KeyWords])
			k[flowtable.WCT] = ctState | uint64(s.Action.CT.Zone)
			tracked = append(tracked, k)
		}
	})
	match := openflow.MatchOf(key, &t.Mask)
	out.Megaflow = openflow.FormatMatch(&match, names)
	out.Actions = openflow.FormatDatapathActions(t.Actions, names)
	if t.Drop != 0 {
		out.Drop = t.Drop.String()
	}
	for i := range t.Actions {
		if a := &t.Actions[i]; a.Op == flowtable.OpRecirc && len(tracked) > 0 && *left > 0 {
			*left--
			next := tracked[0]
			tracked = tracked[1:]
			next[flowtable.WPort] = next[flowtable.WPort]&^0xffffffff | uint64(a.U32)
			then := d.traceKey(&next, ctState, names, left)
			then.Flow = openflow.FormatMatch(observe.FrameMatch(&next), names)
			out.Then = append(out.Then, then)
		}
	}
	return out
}

// traceStep puts a step into words.
func traceStep(s *openflow.TraceStep, names openflow.Names) api.TraceStep {
	step := api.TraceStep{Depth: s.Depth, Table: s.Table, Note: s.Note}
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
