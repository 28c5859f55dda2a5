// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// Finished is a flow with fin_timeout that has seen a TCP FIN or RST. Idle and Hard
// are its new timeouts in seconds; 0: unchanged.
type Finished struct {
	Rule       *Rule
	Idle, Hard uint16
}

// ReduceTimeouts shortens the flow's timeouts to Idle and Hard, and reports whether
// one has changed. It needs exclusive access to the pipeline.
func (f *Finished) ReduceTimeouts() bool {
	r := f.Rule
	idle, hard := r.IdleTimeout, r.HardTimeout
	r.IdleTimeout, r.HardTimeout = reduced(idle, f.Idle), reduced(hard, f.Hard)
	return r.IdleTimeout != idle || r.HardTimeout != hard
}

// reduced returns the shorter of two timeouts. A value of 0 means no timeout.
func reduced(timeout, limit uint16) uint16 {
	if limit == 0 || timeout != 0 && timeout < limit {
		return timeout
	}
	return limit
}

// Parsing and formatting

func (p *actionParser) finTimeout(t token) (Action, error) {
	p.lenient(t, NeedTCP)
	var idle, hard uint16
	for text := t.value; ; {
		word, rest, ok := nextToken(text)
		if !ok {
			return FinTimeout(idle, hard), nil
		}
		text = rest
		var err error
		switch word.key {
		case "idle_timeout":
			err = parseUint16(word, &idle)
		case "hard_timeout":
			err = parseUint16(word, &hard)
		default:
			err = wrong(word.text, "idle_timeout or hard_timeout in fin_timeout")
		}
		if err != nil {
			return Action{}, err
		}
	}
}

// FinTimeout returns the action fin_timeout with these timeouts in seconds; 0: unchanged.
func FinTimeout(idle, hard uint16) Action {
	return Action{Kind: ActFinTimeout, Value: Value128{uint64(idle), uint64(hard)}}
}

func formatFinTimeout(a *Action) string {
	idle, hard := "", ""
	if a.Value[0] != 0 {
		idle = fmt.Sprintf("idle_timeout=%d", a.Value[0])
	}
	if a.Value[1] != 0 {
		hard = fmt.Sprintf("hard_timeout=%d", a.Value[1])
	}
	if idle != "" && hard != "" {
		idle += ","
	}
	return "fin_timeout(" + idle + hard + ")"
}
