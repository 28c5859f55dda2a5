// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"weft/e2e/lab"
	"weft/internal/testnet"
)

func TestMain(m *testing.M) { lab.Main(m) }

// testSeconds is how long a test plays each attack, in seconds. The command "make
// attack" plays each attack for a minute.
const testSeconds = 1

// No attack by a front end, a guest, a peer or an API client harms others. The
// bystanders' frames arrive unchanged, every lost frame is counted, the API answers, new
// guests attach, and neither process leaks memory or descriptors. The time limits are
// wide, because other work may slow the machine down during a test.
func TestAttacks(t *testing.T) {
	testnet.NeedsRoot(t, "makes network namespaces")
	var list []*attack
	for _, a := range attacks {
		if !a.unmended {
			list = append(list, a)
		}
	}
	c := runConfig{seconds: testSeconds, limits: safetyNet, seed: 1}
	_, err := playAll(list, c, 1, func(s *site, r *row) {
		t.Logf("%-24s %5d times, pause %6.1f ms, machine %5.1f ms, API %6.1f ms, attach %6.1f ms, lost %d, counted %d: %s",
			r.Name, r.Repeats, r.PauseMS, r.MachineMS, r.APIMS, r.AttachMS, r.Lost, r.Counted, r.verdict())
		if len(r.Faults) > 0 {
			t.Errorf("%s: %s\n%s", r.Name, r.verdict(), s.log())
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Every attack has a unique name, names its attacker and describes its method.
func TestAttacksSayWhatTheyDo(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range attacks {
		if a.name == "" || seen[a.name] || a.from == "" || a.does == "" || a.once == nil {
			t.Errorf("attack %+v", a)
		}
		seen[a.name] = true
	}
}

// row.judge finds every kind of fault in an attack's measurements, and no fault in
// good measurements.
func TestJudge(t *testing.T) {
	good := row{Repeats: 1000, Answers: 10, PauseMS: 40, MachineMS: 1, APIMS: 5}
	c := runConfig{repeats: 1000, limits: promised}
	for _, b := range []struct {
		what   string
		change func(r *row)
		faults int
	}{
		{"nothing", func(*row) {}, 0},
		{"a bad frame", func(r *row) { r.Bad = 1 }, 1},
		{"a frame at the attacker's", func(r *row) { r.Wrong = 1 }, 1},
		{"a lost frame that is counted", func(r *row) { r.Lost, r.Counted = 1, 1 }, 1},
		{"a lost frame", func(r *row) { r.Lost = 1 }, 2},
		{"a pause", func(r *row) { r.PauseMS = 52 }, 1},
		{"a pause of the machine's", func(r *row) { r.PauseMS, r.MachineMS = 52, 30 }, 0},
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
			t.Errorf("%s: %q, expected %d", b.what, r.Faults, b.faults)
		}
	}
}
