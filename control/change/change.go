// SPDX-License-Identifier: Apache-2.0

// Package change has the configuration lock as a type. A change of the switch is a
// transaction: whoever has a Tx holds the lock. One change of tables, ports or engine
// happens at a time. Readers take the lock too, so that an answer never shows a
// half-applied change.
//
// The packages that take part in a change do at once what can be undone, and leave the rest to
// the stages of the commit (Tx.At). A transaction with many changes thus needs only one view of
// the ports, one walk over the megaflows and one transaction of the state file.
//
//	change.go  the configuration and its transactions
//	commit.go  the stages of a commit
package change

import "sync"

// Configuration is the configuration of the switch. Its zero value is ready. A Configuration
// must not be copied.
type Configuration struct {
	mu sync.Mutex
	// Observe, if not nil, is called with each stage of a commit before its work. Only tests set
	// it, before the first transaction.
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

// Begin waits for the end of other transactions and begins one, which its Commit or Abort ends.
// If one function is the whole transaction, use Update or View instead.
func (c *Configuration) Begin() *Tx {
	c.mu.Lock()
	return &Tx{config: c}
}

// Update calls the function change in a transaction and commits it. If change returns an error,
// Update undoes the parts with an Undo and returns the error. Otherwise it returns the error of
// the commit.
func (c *Configuration) Update(change func(tx *Tx) error) (err error) {
	tx := c.Begin()
	defer tx.end()
	if err := change(tx); err != nil {
		tx.revoke(err)
		return err
	}
	return tx.complete()
}

// Do is Update for a change that returns no error. If the commit cannot save the change, its
// functions of Undo take it back.
func (c *Configuration) Do(change func(tx *Tx)) {
	_ = c.Update(func(tx *Tx) error { change(tx); return nil })
}

// View calls the function look while it holds the configuration lock. look must change nothing.
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
