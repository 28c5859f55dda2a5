// SPDX-License-Identifier: Apache-2.0

package change

import "slices"

// Stage is a step of a commit. A commit does all work of a stage before it begins the next
// stage. Work may add further work to any stage. The commit then continues with the earliest
// stage that has work.
type Stage int

const (
	// Show makes a new view of the ports, the immutable set that translations read.
	Show Stage = iota
	// Walk translates all affected megaflows again, with the new view. After it, no worker uses a
	// translation of the old view.
	Walk
	// Attach passes the devices of new ports to the engine. It comes after Show, so that the view has the
	// ports before their first frames arrive.
	Attach
	// Save writes all changes to the state file, in one transaction of the file.
	Save
	// Close releases resources that nothing uses any more. The functions of Undo cannot take this
	// back.
	Close
	// Tell reports the change to logs, monitors and the client.
	Tell
	// Stages is the number of stages.
	Stages
)

// tasks is the work of one stage, in the order in which it was added.
type tasks struct {
	owners map[any]bool
	list   []func() error
}

// At adds work to a stage of the commit, unless the owner has already added work to this stage.
// Only work of the stage Save may return an error. The commit then undoes what it can, and
// returns the error.
func (tx *Tx) At(stage Stage, owner any, work func() error) {
	s := &tx.stages[stage]
	if s.owners[owner] {
		return
	}
	if s.owners == nil {
		s.owners = map[any]bool{}
	}
	s.owners[owner] = true
	s.list = append(s.list, work)
}

// Undo adds the function undo, which takes back a change. If the transaction cannot be saved or
// is aborted, it calls these functions with the cause, newest first, before the stage Close.
// They may add work to stages.
func (tx *Tx) Undo(undo func(cause error)) { tx.undo = append(tx.undo, undo) }

// Lasts notes that the transaction has changes which Undo does not take back. They stay in
// force if the transaction cannot be saved; the commit then returns an *UnsavedError.
func (tx *Tx) Lasts() { tx.lasts = true }

// Lasting reports whether the transaction has changes that Undo does not take back.
func (tx *Tx) Lasting() bool { return tx.lasts }

// ShowNow does the work of the stage Show at once. Further changes in the transaction then find
// the ports that it has added.
func (tx *Tx) ShowNow() { _ = tx.run(Walk) } // work of this stage returns no error

// UnsavedError is the error about changes that are in force but not saved. A restart of control
// loses them.
type UnsavedError struct{ cause error }

func (e *UnsavedError) Error() string {
	return "the change is in force but could not be saved: " + e.cause.Error()
}

// Unwrap returns the error of the stage Save.
func (e *UnsavedError) Unwrap() error { return e.cause }

// Settle does the work of the stages Show, Walk and Close at once. Afterwards the transaction's
// changes so far are in force, and further changes may use the resources that they released.
func (tx *Tx) Settle() {
	_ = tx.run(Attach) // work of these stages returns no error
	tx.do(Close)
}

// Commit does the work of all stages, and ends the transaction.
func (tx *Tx) Commit() error {
	defer tx.end()
	return tx.complete()
}

// Abort undoes what can be undone, and ends the transaction. The functions of Undo get the
// cause.
func (tx *Tx) Abort(cause error) {
	defer tx.end()
	tx.revoke(cause)
}

func (tx *Tx) end() { tx.config.mu.Unlock() }

// complete does the work of all stages. The transaction keeps the configuration lock.
func (tx *Tx) complete() error {
	err := tx.run(Stages)
	if err != nil && tx.lasts {
		return &UnsavedError{err}
	}
	return err
}

// run does the work of all stages before the stage "end". After an error it undoes the
// transaction and continues.
func (tx *Tx) run(end Stage) (err error) {
	for stage := Show; stage < end; {
		if len(tx.stages[stage].list) == 0 {
			stage++
			continue
		}
		if failed := tx.do(stage); failed != nil {
			err = failed
			tx.takeBack(failed)
		}
		stage = Show
	}
	return err
}

// do executes all work of one stage, in the order in which it was added, even after an error.
// It returns the first error. Work that is added meanwhile waits for the next call.
func (tx *Tx) do(stage Stage) (err error) {
	work := tx.stages[stage].list
	tx.stages[stage] = tasks{}
	if len(work) > 0 && tx.config.Observe != nil {
		tx.config.Observe(stage)
	}
	for _, task := range work {
		if failed := task(); failed != nil && err == nil {
			err = failed
		}
	}
	return err
}

// takeBack calls the functions of Undo, newest first.
func (tx *Tx) takeBack(cause error) {
	list := tx.undo
	tx.undo = nil
	for _, undo := range slices.Backward(list) {
		undo(cause)
	}
}

// revoke discards the work of the stages Attach and Save, undoes what can be undone, and does
// the remaining work.
func (tx *Tx) revoke(cause error) {
	tx.stages[Attach], tx.stages[Save] = tasks{}, tasks{}
	tx.takeBack(cause)
	_ = tx.run(Stages) // no error, because no work of the stage Save is left
}

// State returns the value that a package, the owner, keeps in the transaction. At the first
// call the value is zero.
func State[T any](tx *Tx, owner any) *T {
	if state, there := tx.states[owner]; there {
		return state.(*T)
	}
	if tx.states == nil {
		tx.states = map[any]any{}
	}
	state := new(T)
	tx.states[owner] = state
	return state
}
