// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"weft/e2e/lab"
	"weft/internal/testnet"
	"weft/vhost/vhosttest"
)

func TestMain(m *testing.M) { lab.Main(m) }

// testSeconds is the length of each attack in a test, in seconds. Before the measurement, each attack is
// played once more, for at most the same time.
const testSeconds = 0.2

// testedAttacks returns the attacks that TestAttacks plays: without the option -seconds, none that is long.
func testedAttacks() []*attack {
	if rowSeconds() != testSeconds {
		return attacks
	}
	return slices.DeleteFunc(slices.Clone(attacks), func(a *attack) bool { return a.long })
}

// rowSeconds returns the length of each attack of TestAttacks in seconds: testSeconds, or the value of
// the option -seconds, which make test-long gives.
func rowSeconds() float64 {
	length := testSeconds
	flag.Visit(func(f *flag.Flag) {
		if f.Name == "seconds" {
			length = *seconds
		}
	})
	return length
}

// No attack by a front end, a guest, a peer or a client harms others. The frames of the bystanders (two
// guests) arrive unchanged, every lost frame is counted, the API answers, new guests attach, and neither
// process leaks memory or descriptors. The time limits are wide, because other work may slow the machine
// down during a test.
func TestAttacks(t *testing.T) {
	testnet.NeedsRoot(t, "makes network namespaces")
	c := runConfig{seconds: rowSeconds(), limits: safetyNet, seed: 1}
	_, err := playAll(testedAttacks(), c, 1, func(s *site, r *row) {
		t.Logf("%-24s %5d times, pause %6.1f ms, machine %5.1f ms, API %6.1f ms, attach %6.1f ms, part %.2f, lost %d, counted %d: %s",
			r.Name, r.Repeats, r.PauseMS, r.MachineMS, r.APIMS, r.AttachMS, r.Part, r.Lost, r.Counted, r.verdict())
		if len(r.Faults) > 0 {
			t.Errorf("%s: %s\n%s", r.Name, r.verdict(), s.log())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// If an attacker steals a MAC address, the switch sends it a bystander's frame. The judge of the
// measurements does not report this frame as an uncounted loss.
func TestHeardFramesAreNotUncounted(t *testing.T) {
	testnet.NeedsRoot(t, "makes network namespaces")
	theft := &attack{name: "theft", mayLose: "what the thief hears", hears: true, setup: member(), play: stealOnce}
	rows, err := playAll([]*attack{theft}, runConfig{seconds: testSeconds, limits: safetyNet, seed: 1}, 1, func(s *site, r *row) {
		if len(r.Faults) > 0 {
			t.Errorf("%s\n%s", r.verdict(), s.log())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	r := rows[0]
	if r.Lost == 0 || r.Lost != r.Heard || r.Wrong <= r.Heard || r.Counted != 0 {
		t.Errorf("lost %d, heard %d, wrong %d, counted %d: want as many lost as heard, and more wrong", r.Lost, r.Heard, r.Wrong, r.Counted)
	}
}

// stealOnce steals the MAC address of bystander a, which sends nothing, once before the measurement and
// once during it. Bystander b then sends a frame to this address.
func stealOnce(p *play) error {
	if p.repeats > 0 {
		time.Sleep(time.Millisecond)
		return nil
	}
	s, g := p.site, p.own("guest")
	err := s.stream.do(func() error {
		p.stepWhileFrames(0) // bystander b now has all frames of the load
		frame := make([]byte, 64)
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			if at, err := s.portOf(vhosttest.LoadMAC(0)); err != nil || at == p.name {
				if err != nil {
					return err
				}
				break
			}
			if time.Now().After(end) {
				return errors.New("the address is not stolen")
			}
			g.send(asBystander(0)(p, frame))
			g.flush()
		}
		// After a change of flows has returned, no worker sends frames for the address to its old port
		// any more.
		thefts, _ := p.vars["thefts"].(int)
		p.vars["thefts"] = thefts + 1
		if err := p.flow(fmt.Sprintf("priority=%d,in_port=%s,actions=drop", thefts+1, newcomerPort)); err != nil {
			return err
		}
		p.stepWhileFrames(1)
		return nil
	})
	if err != nil {
		return err
	}
	// Bystander a sends again, so that the switch learns its address at port a.
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if at, err := s.portOf(vhosttest.LoadMAC(0)); err != nil {
			return err
		} else if at == "a" {
			return s.circulates()
		}
	}
	return errors.New("the address does not come back")
}

// stepWhileFrames lets one bystander receive and send until it gets no frame for 20 ms.
func (p *play) stepWhileFrames(guest int) {
	load := p.site.load
	for last := time.Now(); time.Since(last) < 20*time.Millisecond || load.Unreturned() > 0 || p.heldFrames() > 0; time.Sleep(100 * time.Microsecond) {
		if n, _ := load.Step(guest); n > 0 {
			last = time.Now()
		}
	}
}

func (s *site) portOf(mac [6]byte) (string, error) {
	list, err := s.client.MACs()
	for _, m := range list {
		if m.MAC == net.HardwareAddr(mac[:]).String() {
			return m.Port, err
		}
	}
	return "", err
}

// Every attack has a unique name, and names its attacker and what it does.
func TestAttacksSayWhatTheyDo(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks {
		if a.name == "" || seen[a.name] || a.attacker == "" || a.summary == "" || a.play == nil {
			t.Errorf("attack %+v", a)
		}
		seen[a.name] = true
	}
}

// row.judge finds each kind of fault in bad measurements, and none in good ones.
func TestJudge(t *testing.T) {
	good := row{Repeats: 1000, Answers: 10, PauseMS: 40, MachineMS: 1, APIMS: 5, Part: 0.8}
	c := runConfig{repeats: 1000, limits: promised}
	for _, b := range []struct {
		name   string
		change func(r *row)
		faults int
	}{
		{"nothing", func(*row) {}, 0},
		{"a bad frame", func(r *row) { r.Bad = 1 }, 1},
		{"a frame at the attacker's", func(r *row) { r.Wrong = 1 }, 1},
		{"a lost frame that is counted", func(r *row) { r.Lost, r.Counted = 1, 1 }, 1},
		{"a lost frame", func(r *row) { r.Lost = 1 }, 2},
		{"a frame that the attacker received instead", func(r *row) { r.Lost, r.Wrong, r.Heard = 1, 1, 1 }, 2},
		{"frames of which the attacker received all but one", func(r *row) { r.Lost, r.Wrong, r.Heard = 64, 63, 63 }, 3},
		{"a pause", func(r *row) { r.PauseMS = 52 }, 1},
		{"a pause of the machine's", func(r *row) { r.PauseMS, r.MachineMS = 52, 30 }, 0},
		{"less than the fair share", func(r *row) { r.Part = 0.79 }, 1},
		{"a slow answer", func(r *row) { r.APIMS = 1001 }, 1},
		{"a slow attach", func(r *row) { r.AttachMS = 1002 }, 1},
		{"no answer", func(r *row) { r.Answers = 0 }, 1},
		{"a leak of descriptors", func(r *row) { r.Engine[1].Descriptors = 1000 }, 1},
		{"a leak of mappings", func(r *row) { r.Control[1].Mappings = 1 }, 1},
		{"too few repeats", func(r *row) { r.Repeats = 999 }, 1},
	} {
		r := good
		b.change(&r)
		r.judge(&attack{message: true}, c)
		if len(r.Faults) != b.faults {
			t.Errorf("%s: %q, expected %d", b.name, r.Faults, b.faults)
		}
	}
}
