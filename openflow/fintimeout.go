// SPDX-License-Identifier: Apache-2.0

package openflow

import "fmt"

// nxFinTimeout is the subtype of the action with which Nicira's extensions encode fin_timeout.
const nxFinTimeout = 19

func init() {
	addAction(ActFinTimeout, actionRow{words: map[string]actionParse{"fin_timeout": (*actionParser).finTimeout}, format: formatFinTimeout,
		encode: func(_ *actionEncoder, b []byte, a *Action) []byte {
			return be.AppendUint16(be.AppendUint16(appendNX(b, nxFinTimeout), uint16(a.Value[0])), uint16(a.Value[1]))
		},
		nicira: map[uint16]niciraRow{nxFinTimeout: {6, func(d *actionDecoder, _ uint16, b []byte) (Action, error) {
			d.check.lenient("fin_timeout", NeedTCP)
			return FinTimeout(be.Uint16(b), be.Uint16(b[2:])), nil
		}}}})
}

func (p *actionParser) finTimeout(t token) (Action, error) {
	p.check.lenient(t.text, NeedTCP)
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

func formatFinTimeout(a *Action, _ Names) string {
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
