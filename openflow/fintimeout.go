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

// TCP flags that end a connection (RFC 9293 section 3.1).
var finFlag, rstFlag = Subfield{FTCPFlags, 0, 1}, Subfield{FTCPFlags, 2, 1}

// finTimeout adds the current flow to x.finished if the frame is a TCP FIN or RST. The
// megaflow matches both flags.
func (x *xlate) finTimeout(a *Action) {
	if x.rule == nil || !x.hasField(FTCPFlags) {
		return
	}
	fin, rst := x.read(finFlag), x.read(rstFlag)
	if fin[1]|rst[1] != 0 {
		x.finished = append(x.finished, Finished{x.rule, uint16(a.Value[0]), uint16(a.Value[1])})
		x.note("FIN or RST: the flow gets its shorter timeouts")
	}
}

// Parsing and formatting

func (p *actionParser) finTimeout(t token) (Action, error) {
	p.lenient(t, needTCP)
	var idle, hard uint16
	for text := t.value; ; {
		word, rest, ok := nextToken(text)
		if !ok {
			return finTimeoutOf(idle, hard), nil
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

func finTimeoutOf(idle, hard uint16) Action {
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
