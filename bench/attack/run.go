// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"weft/api"
)

// row has the measurements of one attack. The report prints a row for each attack.
type row struct {
	Name    string  `json:"name"`
	From    string  `json:"from"`
	MayLose string  `json:"may_lose,omitempty"`
	Seconds float64 `json:"seconds"`
	Repeats int     `json:"repeats"`

	PauseMS   float64 `json:"pause_ms"`   // longest time without a frame at the bystanders
	MachineMS float64 `json:"machine_ms"` // longest delay of a timer on this machine during the attack
	APIMS     float64 `json:"api_ms"`     // time of the API's slowest answer
	Answers   int     `json:"answers"`    // number of answers of the API
	AttachMS  float64 `json:"attach_ms"`  // longest time for a guest that does not attack to attach and echo a frame

	// Part says how well the switch served the bystanders, from 0 to 1, as fair.go explains. Wanted is
	// the number of frames that they asked for; 0: as many as they could get.
	Part   float64 `json:"part"`
	Wanted uint64  `json:"wanted,omitempty"`

	Received uint64            `json:"received"` // number of frames that the bystanders received
	Lost     int64             `json:"lost"`
	Counted  uint64            `json:"counted"` // number of bystanders' frames that the switch counted as dropped
	Drops    map[string]uint64 `json:"drops,omitempty"`
	// number of frames that the two guests received twice, because the switch repeats frames when it
	// replaces an engine
	Again uint64 `json:"again"`
	Bad   int    `json:"bad"`   // number of changed frames and of misused buffers
	Wrong int64  `json:"wrong"` // number of bystanders' frames at the attacker, also before the measurement
	Heard int64  `json:"heard"` // the frames in Wrong that arrived during the measurement

	Control [2]usage `json:"control"` // of the control process, before and after the attack
	Engine  [2]usage `json:"engine"`
	// private memory of the watched process in bytes: at the beginning of the attack, and the largest
	// value during it. The control process is watched, unless play.watched names another one.
	BeforeBytes int64  `json:"before_bytes"`
	PeakBytes   int64  `json:"peak_bytes"`
	Engines     uint64 `json:"engines_replaced"`

	Notes  string   `json:"notes,omitempty"`
	Faults []string `json:"faults,omitempty"`
}

// limits says what an attack may cause: the longest pause of the bystanders, the longest time of an API
// answer, and the smallest row.Part.
type limits struct {
	pause, answer time.Duration // plus the machine's own timer delay (row.MachineMS)
	part          float64       // see row.Part
}

// promised has the limits that SECURITY.md promises. Tests use safetyNet, which only catches hangs.
var (
	promised  = limits{50 * time.Millisecond, time.Second, 0.8}
	safetyNet = limits{15 * time.Second, 15 * time.Second, 0}
)

// leastMemory is in bytes. Memory counts as leaked if a process has more than twice its earlier memory
// plus leastMemory.
const leastMemory = 256 << 20

// leastRepeats is for attacks that consist of a single message or a single attach (attack.message). The
// program plays such an attack at least this many times.
const leastRepeats = 1000

// runConfig has the length in seconds of each attack, and the limits for its measurements.
type runConfig struct {
	seconds float64
	repeats int           // how often to play an attack at least if attack.message is set
	longest time.Duration // time limit for these repeats
	limits  limits
	seed    uint64
}

// run plays an attack and returns its row. Faults of the switch are in the row; an error means that this
// program failed.
func (s *site) run(a *attack, c runConfig) (r row, err error) {
	r = row{Name: a.name, From: a.attacker, MayLose: a.mayLose}
	p := newPlay(s, a, c.seed)
	defer p.teardown()
	length := time.Duration(c.seconds * float64(time.Second))
	m := s.beginPart(a, length)
	if a.setup != nil {
		if err := a.setup(p); err != nil {
			return r, fmt.Errorf("%s: set-up: %w", a.name, err)
		}
	}
	p.until = time.Now().Add(min(length, time.Second))
	if err := p.bounded(func() error { return a.play(p) }); err != nil {
		r.fault("first go: %v", err)
		return r, nil
	}
	before, err := s.client.Show()
	if err != nil {
		return r, err
	}
	r.Control[0], r.Engine[0] = usageOf(before.PID), usageOf(before.EnginePID)
	s.stream.beginStill(p.heldFrames)
	p.began = p.wrong.Load()
	s.stream.watch()
	bare, answers, newcomer, memory := watchMachine(), probe(s.client), watchNewcomer(s), watchMemory(cmp.Or(p.watched, before.PID))
	p.slowest = 0
	begin := time.Now()
	p.until = begin.Add(length)
	m.begin()
	if err := p.bounded(func() error { return p.repeat(c) }); err != nil {
		r.fault("%v", err)
	}
	m.end(&r)
	r.Seconds, r.Repeats = time.Since(begin).Seconds(), p.repeats
	r.PauseMS = ms(s.stream.longest())
	slowest, n, err := answers.end()
	if err != nil && !a.kills { // no fault: while an engine is replaced, the API answers with an error that says so
		r.fault("API: %v", err)
	}
	r.APIMS, r.Answers = ms(max(slowest, p.slowest)), n
	attach, err := newcomer.end()
	if err != nil {
		r.fault("another guest: %v", err)
	}
	r.AttachMS = ms(attach)
	r.BeforeBytes, r.PeakBytes = memory.end()
	if err := p.bounded(func() error { return s.settle(&r, p, before) }); err != nil {
		r.fault("%v", err)
	}
	r.MachineMS = ms(bare.end())
	r.judge(a, c)
	return r, nil
}

func (p *play) repeat(c runConfig) error {
	end := time.Now().Add(c.longest)
	for !p.expired() || p.message && p.repeats < c.repeats && time.Now().Before(end) {
		if err := p.play(p); err != nil {
			return fmt.Errorf("go %d: %w", p.repeats, err)
		}
		p.repeats++
	}
	return nil
}

// hangs is how long a function of an attack may still run when the time of the attack is over.
const hangs = 2 * patience

// bounded calls f and returns its error. If f runs too long after the end of the attack, bounded returns
// an error and leaves f running.
func (p *play) bounded(f func() error) error {
	done := make(chan error, 1)
	begin := time.Now()
	go func() { done <- f() }()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(100 * time.Millisecond):
		}
		if left := time.Until(p.until); left < -hangs && time.Since(begin) > 6*hangs {
			return fmt.Errorf("hangs for %v", time.Since(begin).Round(time.Second))
		}
	}
}

// settle waits until the frames of the guests that do not attack pass the switch again. It then waits
// up to five seconds until the switch has freed the attacker's resources, and fills in the rest of the
// row.
func (s *site) settle(r *row, p *play, old api.Show) error {
	if err := s.circulates(); err != nil {
		r.PauseMS = ms(s.stream.longest())
		return err
	}
	t := s.stream.countStill(p.heldFrames)
	r.Received, r.Lost, r.Again, r.Bad = t.Received, t.Lost, t.Repeated, t.Bad+t.Misused
	r.Wrong = p.wrong.Load()
	r.Heard = r.Wrong - p.began
	var after api.Show
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		var err error
		if after, err = s.client.Show(); err != nil {
			return err
		}
		r.countDrops(&old, &after)
		r.Control[1], r.Engine[1] = usageOf(after.PID), usageOf(after.EnginePID)
		if !r.leaks(p.memory) || time.Now().After(end) {
			break
		}
	}
	if p.check != nil {
		if err := p.check(p); err != nil {
			r.fault("%v", err)
		}
	}
	r.Notes = strings.TrimSpace(r.Notes + " " + p.notes)
	r.Engines = after.Restarts - old.Restarts
	if after.PID != old.PID {
		r.fault("control ended")
	}
	if r.Engines > 0 && !p.kills {
		r.fault("the engine ended %d times", r.Engines)
	}
	return nil
}

// countDrops sets Drops and Counted to the drops between two states of the switch. It counts only the
// ports of the guests that do not attack.
func (r *row) countDrops(oldState, newState *api.Show) {
	r.Drops, r.Counted = map[string]uint64{}, 0
	was := dropped(oldState)
	for reason, n := range dropped(newState) {
		if n > was[reason] {
			r.Drops[reason], r.Counted = n-was[reason], r.Counted+n-was[reason]
		}
	}
}

// uncounted returns the number of lost frames that the switch has neither counted as
// dropped nor delivered to the attacker.
func (r *row) uncounted() int64 { return max(r.Lost-int64(r.Counted)-r.Heard, 0) }

func (r *row) fault(format string, args ...any) {
	r.Faults = append(r.Faults, fmt.Sprintf(format, args...))
}

// spareDescriptors is how many more descriptors the switch may have open after an attack. They are its
// ends of this program's API connections.
const spareDescriptors = 4

// leaks reports whether the control process or the engine holds more memory, file descriptors or
// mappings after the attack than allowed. "extra" is the memory in bytes that this attack may use in
// addition.
func (r *row) leaks(extra int64) bool {
	for _, u := range [][2]usage{r.Control, r.Engine} {
		if u[1].Descriptors > u[0].Descriptors+spareDescriptors || u[1].Mappings > u[0].Mappings || u[1].Bytes > 2*u[0].Bytes+leastMemory+extra {
			return true
		}
	}
	return false
}

func (r *row) judge(a *attack, c runConfig) {
	if r.Bad > 0 {
		r.fault("%d frames of the bystanders are not what was sent", r.Bad)
	}
	if r.Wrong > 0 && !a.hears {
		r.fault("%d frames of the bystanders came to the attacker", r.Wrong)
	}
	if n := r.uncounted(); n > 0 {
		r.fault("%d frames are lost without being counted", n)
	}
	if r.Lost > 0 && a.mayLose == "" {
		r.fault("%d frames are lost", r.Lost)
	}
	if r.leaks(a.memory) {
		r.fault("a process holds more than before: control %+v, engine %+v", r.Control, r.Engine)
	}
	if grown := r.PeakBytes - r.BeforeBytes; a.peak > 0 && grown > a.peak {
		r.fault("a process grew by %d MiB, the limit is %d", grown>>20, a.peak>>20)
	}
	if limit := c.limits.pause + time.Duration(r.MachineMS*1e6); r.PauseMS > ms(limit) {
		r.fault("pause of %.0f ms, the limit is %.0f", r.PauseMS, ms(limit))
	}
	if r.Part < c.limits.part {
		r.fault("the bystanders got %.2f of what they asked for within their fair share, the limit is %.2f", r.Part, c.limits.part)
	}
	if r.APIMS > ms(c.limits.answer) {
		r.fault("an answer took %.0f ms", r.APIMS)
	}
	if r.AttachMS > ms(c.limits.answer)+r.MachineMS {
		r.fault("another guest took %.0f ms to attach", r.AttachMS)
	}
	if r.Answers == 0 {
		r.fault("the API has given no answer")
	}
	if a.message && r.Repeats < c.repeats {
		r.fault("%d repeats in %.0f s, expected %d", r.Repeats, r.Seconds, c.repeats)
	}
}

func (r *row) verdict() string {
	if len(r.Faults) == 0 {
		return strings.TrimSpace("holds " + r.Notes)
	}
	return strings.Join(append(r.Faults, r.Notes), "; ")
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
