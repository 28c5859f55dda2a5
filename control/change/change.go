// SPDX-License-Identifier: Apache-2.0

// Package change serializes the changes of the switch's configuration. One lock guards the
// configuration. A transaction (Tx) holds it from its beginning to its end, so one change of flow
// tables, ports or the engine process happens at a time. Readers take the lock too, so an answer
// never shows a half-applied change.
//
// A package makes a change at once if it can undo the change. It adds the rest of the work to the
// stages of the commit (Tx.At). A transaction with many changes therefore makes one new set of
// ports, looks up each cached flow at most once more, and writes the state file once.
//
//	change.go  the configuration and its transactions
//	commit.go  the stages of a commit
package change

import "sync"

// Configuration has the lock of the switch's configuration. The zero value is ready for use. A
// Configuration must not be copied.
type Configuration struct {
	mu sync.Mutex
	// Observe, if not nil, is called with each stage of a commit before the work of the stage. Only
	// tests set it, before the first transaction.
	Observe func(stage Stage)
}

// Tx is one transaction: a change of the configuration, or a consistent read of it. It ends
// with Commit or Abort. The goroutine that began it owns it.
type Tx struct {
	config *Configuration
	stages [Stages]tasks
	undo   []func(cause error)
	lasts  bool        // see Lasts
	states map[any]any // see State
}

// Begin waits until no other transaction is open, and begins one. The caller ends it with Commit or
// Abort. If one function is the whole transaction, use Update or View instead.
func (c *Configuration) Begin() *Tx {
	c.mu.Lock()
	return &Tx{config: c}
}

// Update calls the function "change" in a transaction and commits the transaction. If "change"
// returns an error, Update calls the functions that were passed to Tx.Undo, and returns the error.
// Otherwise it returns the error of the commit.
func (c *Configuration) Update(change func(tx *Tx) error) (err error) {
	tx := c.Begin()
	defer tx.end()
	if err := change(tx); err != nil {
		tx.revoke(err)
		return err
	}
	return tx.complete()
}

// Do is Update for a function that returns no error. If the commit cannot save the change, the
// transaction calls the functions that were passed to Tx.Undo.
func (c *Configuration) Do(change func(tx *Tx)) {
	_ = c.Update(func(tx *Tx) error { change(tx); return nil })
}

// View calls the function "look" while it holds the configuration lock. The function must change
// nothing.
func (c *Configuration) View(look func(tx *Tx)) {
	tx := c.Begin()
	defer tx.end()
	look(tx)
}

// Result calls change in a transaction like Update, and also returns its result.
func Result[T any](c *Configuration, change func(tx *Tx) (T, error)) (result T, err error) {
	err = c.Update(func(tx *Tx) error {
		result, err = change(tx)
		return err
	})
	return result, err
}

// Read calls look like View, and returns its result.
func Read[T any](c *Configuration, look func(tx *Tx) (T, error)) (result T, err error) {
	c.View(func(tx *Tx) { result, err = look(tx) })
	return result, err
}
