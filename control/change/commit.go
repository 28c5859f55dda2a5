// SPDX-License-Identifier: Apache-2.0

package change

import "slices"

// Stage is a step of a commit. A commit does all work of a stage before it begins the next stage.
// The work of a stage may add work to any stage. The commit then continues with the earliest stage
// that has work.
type Stage int

const (
	// Show makes the new set of ports that the look-ups of frames in the flow tables read. The set is
	// immutable.
	Show Stage = iota
	// Walk looks up the affected megaflows (cached flows) in the flow tables again, with the new set
	// of ports. Afterwards no worker thread uses an outdated megaflow.
	Walk
	// Attach passes the devices of new ports to the engine process. It comes after Show, so that the
	// look-ups know the ports before their first frames arrive.
	Attach
	// Save writes all changes to the state file, in one transaction of that file.
	Save
	// Close frees the resources that nothing uses any more. A resource that is closed stays closed,
	// even if the transaction is undone.
	Close
	// Tell reports the change to logs, monitors and the client.
	Tell
	// Stages is the number of stages.
	Stages
)

// tasks has the work that was added to one stage, in the order of addition.
type tasks struct {
	owners map[any]bool
	list   []func() error
}

// At adds the function "work" to a stage of the commit. It does nothing if the same "owner" has
// already added work to this stage. Only work of the stage Save may return an error. The commit then
// undoes what it can, and returns the error.
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

// Undo adds a function that takes back a change. If the transaction is aborted or cannot be saved,
// it calls these functions with the cause, the newest first, before the stage Close. They may add
// work to stages.
func (tx *Tx) Undo(undo func(cause error)) { tx.undo = append(tx.undo, undo) }

// Lasts records that the transaction has made changes for which there is no function of Undo. If the
// transaction cannot be saved, these changes stay in force, and the commit returns an *UnsavedError.
func (tx *Tx) Lasts() { tx.lasts = true }

// Lasting reports whether Lasts was called in the transaction.
func (tx *Tx) Lasting() bool { return tx.lasts }

// ShowNow does the work of the stage Show at once. Later changes in the same transaction then find
// the ports that were added.
func (tx *Tx) ShowNow() { _ = tx.run(Walk) } // work of this stage returns no error

// UnsavedError is the error about changes that are in force but not saved. The next start of the
// control process loses them.
type UnsavedError struct{ cause error }

func (e *UnsavedError) Error() string {
	return "the change is in force but could not be saved: " + e.cause.Error()
}

// Unwrap returns the error of the stage Save.
func (e *UnsavedError) Unwrap() error { return e.cause }

// Settle does the work of the stages Show, Walk and Close at once. Afterwards the changes so far are
// in force, and later changes in the same transaction may use the resources that were freed.
func (tx *Tx) Settle() {
	_ = tx.run(Attach) // work of these stages returns no error
	tx.do(Close)
}

// Commit does the work of all stages, and ends the transaction.
func (tx *Tx) Commit() error {
	defer tx.end()
	return tx.complete()
}

// Abort calls the functions that were passed to Undo with the cause, and ends the transaction.
func (tx *Tx) Abort(cause error) {
	defer tx.end()
	tx.revoke(cause)
}

func (tx *Tx) end() { tx.config.mu.Unlock() }

// complete does the work of all stages, but does not release the configuration lock.
func (tx *Tx) complete() error {
	err := tx.run(Stages)
	if err != nil && tx.lasts {
		return &UnsavedError{err}
	}
	return err
}

// run does the work of all stages before the stage "end". If the work of a stage fails, run calls
// the functions of Undo and continues.
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

// do executes all work of one stage in the order of addition, even after an error. It returns the
// first error. Work that is added to the stage meanwhile waits for the next call.
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

// takeBack calls the functions that were passed to Undo, the newest first.
func (tx *Tx) takeBack(cause error) {
	list := tx.undo
	tx.undo = nil
	for _, undo := range slices.Backward(list) {
		undo(cause)
	}
}

// revoke discards the work of the stages Attach and Save, calls the functions of Undo, and does the
// remaining work.
func (tx *Tx) revoke(cause error) {
	tx.stages[Attach], tx.stages[Save] = tasks{}, tasks{}
	tx.takeBack(cause)
	_ = tx.run(Stages) // no error, because no work of the stage Save is left
}

// State returns a pointer to the value of type T that the transaction stores for the owner, which
// identifies the calling package. The value is zero at the first call.
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
