// SPDX-License-Identifier: Apache-2.0

package openflow

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// Subtypes of Nicira's two actions for controller.
const (
	nxController  = 20
	nxController2 = 37
)

func init() {
	addAction(ActController, actionRow{words: map[string]actionParse{"controller": (*actionParser).controller, "CONTROLLER": (*actionParser).controller},
		format: func(a *Action, _ Names) string { return a.Controller.format() },
		encode: func(e *actionEncoder, b []byte, a *Action) []byte { return e.controller(b, a.Controller) },
		nicira: map[uint16]niciraRow{nxController: {6, decodeController}, nxController2: {6, func(_ *actionDecoder, _ uint16, b []byte) (Action, error) {
			return decodeController2(b[6:])
		}}}})
}

// Controller holds the arguments of a controller action. The switch sends the frame to OpenFlow controllers,
// and to captures that the operator has started on the port CONTROLLER. The rate of these frames is limited.
type Controller struct {
	MaxLen   uint16
	ID       uint16
	Reason   string // "" means action
	Userdata string // raw bytes
	Pause    bool   // ends the translation; the controller's NXT_RESUME continues it, see xlate/pause.go
	Meter    uint32 // number of the meter that limits the frames; 0: MeterController, if there is one
}

// IsOutput reports whether the action is the same as output:CONTROLLER, which has no arguments but max_len.
// Then the message to the controller may have OpenFlow's reason packet_out. Any other controller action
// names the reason in its arguments, or has the reason "action". Open vSwitch does the same; ovn-controller
// ignores frames with other reasons.
func (c *Controller) IsOutput() bool {
	return c.ID == 0 && c.Reason == "" && c.Userdata == "" && !c.Pause && c.Meter == 0
}

// WholeFrame is the value of MaxLen for an action that names no max_len: the controller
// gets the whole frame.
const WholeFrame = 0xffff

// controllerReasons are the words for OpenFlow's reasons for a packet-in message, with a space around each.
const controllerReasons = " no_match action invalid_ttl action_set group packet_out "

func (p *actionParser) controller(t token) (Action, error) {
	c := &Controller{MaxLen: WholeFrame}
	if t.delim == ':' || t.delim == '=' {
		v, ok := parseUint(t.value, 0xffff)
		if !ok {
			return Action{}, wrong(t.text, "controller:LENGTH, at most 65535")
		}
		c.MaxLen = uint16(v)
		return Action{Kind: ActController, Controller: c}, nil
	}
	for text := t.value; ; {
		word, rest, ok := nextToken(text)
		if !ok {
			if p.check.inSet && *c != (Controller{MaxLen: c.MaxLen}) {
				return Action{}, wrong(t.text, "controller with max_len alone in an action set")
			}
			return Action{Kind: ActController, Controller: c}, nil
		}
		text = rest
		if err := c.word(word); err != nil {
			return Action{}, err
		}
	}
}

func (c *Controller) word(t token) error {
	switch t.key {
	case "max_len":
		return parseUint16(t, &c.MaxLen)
	case "id":
		return parseUint16(t, &c.ID)
	case "reason":
		if !strings.Contains(controllerReasons, " "+t.value+" ") {
			return wrong(t.text, "a reason such as no_match or action")
		}
		if c.Reason = t.value; t.value == "action" {
			c.Reason = ""
		}
	case "userdata":
		b, err := hex.DecodeString(strings.ReplaceAll(t.value, ".", ""))
		if err != nil {
			return wrong(t.text, "pairs of hexadecimal digits")
		}
		c.Userdata = string(b)
	case "pause":
		c.Pause = true
	case "meter_id":
		v, ok := parseUint(t.value, MeterController)
		if !ok || !isMeter(uint32(v)) && v != 0 {
			return wrong(t.text, "a meter number from 1 to %d", uint32(MaxMeter))
		}
		c.Meter = uint32(v)
	default:
		return wrong(t.text, "max_len, id, reason, userdata, pause or meter_id")
	}
	return nil
}

func (c *Controller) format() string {
	if *c == (Controller{MaxLen: c.MaxLen}) {
		return fmt.Sprintf("CONTROLLER:%d", c.MaxLen)
	}
	var words []string
	add := func(set bool, format string, arg any) {
		if set {
			words = append(words, fmt.Sprintf(format, arg))
		}
	}
	add(c.Reason != "", "reason=%s", c.Reason)
	add(c.MaxLen != WholeFrame, "max_len=%d", c.MaxLen)
	add(c.ID != 0, "id=%d", c.ID)
	add(c.Userdata != "", "userdata=%s", strings.ReplaceAll(fmt.Sprintf("% x", c.Userdata), " ", "."))
	if c.Pause {
		words = append(words, "pause")
	}
	add(c.Meter != 0, "meter_id=%d", c.Meter)
	return "controller(" + strings.Join(words, ",") + ")"
}
