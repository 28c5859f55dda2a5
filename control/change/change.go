// SPDX-License-Identifier: Apache-2.0

// Package change has the configuration lock as a type. A change of the switch is a
// transaction: whoever has a Tx holds the lock. One change of tables, ports or engine
// happens at a time. Readers take the lock too, so that an answer never shows a
// half-applied change.
package change

import "sync"

// Configuration is the configuration of the switch. Its zero value is ready. A Configuration
// must not be copied.
type Configuration struct{ mu sync.Mutex }

// Tx is one change of a configuration, or one look at it. It ends with its Commit. The
// goroutine that began it owns it.
type Tx struct{ config *Configuration }

// Begin waits for the end of other transactions and begins one, which its Commit ends. Use
// Update and View where one function is the whole transaction.
func (c *Configuration) Begin() *Tx {
	c.mu.Lock()
	return &Tx{c}
}

// Commit ends the transaction.
func (tx *Tx) Commit() { tx.config.mu.Unlock() }

// Update calls change in a transaction, and returns its error.
func (c *Configuration) Update(change func(tx *Tx) error) error {
	tx := c.Begin()
	defer tx.Commit()
	return change(tx)
}

// Do is Update for a change that returns no error.
func (c *Configuration) Do(change func(tx *Tx)) {
	tx := c.Begin()
	defer tx.Commit()
	change(tx)
}

// View calls look in a transaction that changes nothing.
func (c *Configuration) View(look func(tx *Tx)) {
	tx := c.Begin()
	defer tx.Commit()
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
