// SPDX-License-Identifier: Apache-2.0

// Package change has the configuration lock as a type. A change of the switch is a
// transaction: whoever has a Tx holds the lock. One change of tables, ports or engine
// happens at a time. Readers take the lock too, so that an answer never shows a
// half-applied change.
//
// The packages that take part in a change do at once what can be undone, and leave the rest
// to the stages of the commit (Tx.At). So many changes in one transaction make one view of
// the ports, one walk of the megaflows and one transaction of the state file.
//
//	change.go  the configuration and its transactions
//	commit.go  the stages of a commit
package change

import "sync"

// Configuration is the configuration of the switch. Its zero value is ready. A Configuration
// must not be copied.
type Configuration struct {
	mu sync.Mutex
	// Observe, if not nil, is called before the work of each stage. Tests set it before the first
	// transaction.
	Observe func(stage Stage)
}

// Tx is one change of a configuration, or one look at it. It ends with Commit or Abort. The
// goroutine that began it owns it.
type Tx struct {
	config *Configuration
	stages [Stages]tasks
	undo   []func(cause error)
	lasts  bool        // see Lasts
	states map[any]any // see State
}

// Begin waits for the end of other transactions and begins one, which its Commit or Abort
// ends. Use Update and View where one function is the whole transaction.
func (c *Configuration) Begin() *Tx {
	c.mu.Lock()
	return &Tx{config: c}
}

// Update calls change in a transaction and commits it. It returns the error of change, after
// which it takes back what can be undone, or the error of the commit.
func (c *Configuration) Update(change func(tx *Tx) error) (err error) {
	tx := c.Begin()
	defer tx.end()
	if err := change(tx); err != nil {
		tx.revoke(err)
		return err
	}
	return tx.complete()
}

// Do is Update for a change that returns no error. What it saves, it takes back with Undo.
func (c *Configuration) Do(change func(tx *Tx)) {
	_ = c.Update(func(tx *Tx) error { change(tx); return nil })
}

// View calls look in a transaction that changes nothing.
func (c *Configuration) View(look func(tx *Tx)) {
	tx := c.Begin()
	defer tx.end()
	look(tx)
}

// Result is Update for a change that has a result.
func Result[T any](c *Configuration, change func(tx *Tx) (T, error)) (result T, err error) {
	err = c.Update(func(tx *Tx) error {
		result, err = change(tx)
		return err
	})
	return result, err
}

// Read is View for a look that has a result.
func Read[T any](c *Configuration, look func(tx *Tx) (T, error)) (result T, err error) {
	c.View(func(tx *Tx) { result, err = look(tx) })
	return result, err
}
