package control

import (
	"weft/api"
	"weft/openflow"
)

// trace follows a made-up frame through the tables. Nothing counts it and
// nothing is learnt from it.
func (d *Daemon) trace(flow string) (api.Trace, error) {
	if flow == "" {
		return api.Trace{}, inputf("flow: a frame is missing; expected match fields as in in_port=1,tcp,nw_dst=10.0.0.1")
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
	out := api.Trace{Flow: openflow.FormatMatch(&given.Match, d.view), Steps: []api.TraceStep{}}
	t := d.pipeline.Trace(&key, d.env(), func(s openflow.TraceStep) { out.Steps = append(out.Steps, d.traceStep(&s)) })
	match := openflow.MatchOf(&key, &t.Mask)
	out.Megaflow = openflow.FormatMatch(&match, d.view)
	out.Actions = openflow.FormatDatapathActions(t.Actions, d.view)
	if t.Drop != 0 {
		out.Drop = t.Drop.String()
	}
	return out, nil
}

// traceStep puts a step into words. Caller holds mu.
func (d *Daemon) traceStep(s *openflow.TraceStep) api.TraceStep {
	step := api.TraceStep{Depth: s.Depth, Table: s.Table, Note: s.Note}
	switch {
	case s.Lookup:
		step.Kind = api.StepTable
		if s.Rule != nil {
			step.Rule = &api.TraceRule{
				Priority: int(s.Rule.Priority), Cookie: s.Rule.Cookie,
				Match:   openflow.FormatMatch(&s.Rule.Match, d.view),
				Actions: openflow.FormatActions(s.Rule.Actions, d.view),
			}
		}
	case s.Action != nil:
		step.Kind = api.StepAction
		step.Action = openflow.FormatActions([]openflow.Action{*s.Action}, d.view)
	default:
		step.Kind = api.StepNote
	}
	return step
}
