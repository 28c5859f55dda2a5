// SPDX-License-Identifier: Apache-2.0

package change_test

import (
	"errors"
	"slices"
	"testing"

	"weft/control/change"
)

// journal notes the steps of a transaction.
type journal []string

func (j *journal) step(word string) func() error {
	return func() error { *j = append(*j, word); return nil }
}

func (j *journal) check(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(*j, want) {
		t.Errorf("steps %v, want %v", *j, want)
	}
	*j = nil
}

// A commit does the work of each stage once for each owner, in the order of the stages.
func TestStages(t *testing.T) {
	var c change.Configuration
	var j journal
	err := c.Update(func(tx *change.Tx) error {
		for range 3 {
			tx.At(change.Tell, "a", j.step("tell"))
			tx.At(change.Save, "a", j.step("save"))
			tx.At(change.Walk, "a", j.step("walk"))
			tx.At(change.Show, "a", j.step("show a"))
			tx.At(change.Show, "b", j.step("show b"))
		}
		tx.At(change.Attach, "a", func() error { // as for a device that cannot be attached
			tx.At(change.Show, "a", j.step("show again"))
			return nil
		})
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	j.check(t, "show a", "show b", "walk", "show again", "save", "tell")
}

// A transaction that cannot be saved calls its functions of Undo in reverse order, and then
// does the work that they have added.
func TestUnsavedChangeIsTakenBack(t *testing.T) {
	var c change.Configuration
	var j journal
	full := errors.New("the disk is full")
	undo := func(tx *change.Tx, word string) {
		tx.Undo(func(cause error) {
			if cause != full {
				t.Errorf("the cause is %v", cause)
			}
			j = append(j, word)
			tx.At(change.Show, "a", j.step("show"))
		})
	}
	err := c.Update(func(tx *change.Tx) error {
		undo(tx, "undo first")
		undo(tx, "undo second")
		tx.At(change.Show, "a", j.step("show"))
		tx.At(change.Save, "a", func() error { return full })
		tx.At(change.Close, "a", j.step("close"))
		return nil
	})
	if err != full {
		t.Errorf("error %v", err)
	}
	j.check(t, "show", "undo second", "undo first", "show", "close")

	err = c.Update(func(tx *change.Tx) error {
		undo(tx, "undo")
		tx.At(change.Attach, "a", j.step("attach"))
		tx.At(change.Save, "a", j.step("save"))
		return full
	})
	if err != full {
		t.Errorf("error %v of the function", err)
	}
	j.check(t, "undo", "show")

	tx := c.Begin()
	undo(tx, "undo")
	tx.Abort(full)
	j.check(t, "undo", "show")
}

// After Settle, the transaction's changes so far are in force but not yet saved.
func TestSettle(t *testing.T) {
	var c change.Configuration
	var j journal
	tx := c.Begin()
	for stage, word := range map[change.Stage]string{change.Show: "show", change.Attach: "attach", change.Save: "save", change.Close: "close"} {
		tx.At(stage, "a", j.step(word))
	}
	tx.Settle()
	j.check(t, "show", "close")
	if err := tx.Commit(); err != nil {
		t.Error(err)
	}
	j.check(t, "attach", "save")
}

// State returns the same value to an owner until the transaction ends.
func TestState(t *testing.T) {
	var c change.Configuration
	for range 2 {
		tx := c.Begin()
		*change.State[int](tx, "a")++
		*change.State[int](tx, "b") += 5
		if n := *change.State[int](tx, "a"); n != 1 {
			t.Errorf("the state is %d", n)
		}
		if err := tx.Commit(); err != nil {
			t.Error(err)
		}
	}
}
