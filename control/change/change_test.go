// SPDX-License-Identifier: Apache-2.0

package change_test

import (
	"errors"
	"sync"
	"testing"

	"weft/control/change"
	"weft/control/change/changetest"
)

// Transactions exclude each other, whichever method began them.
func TestTransactionsExclude(t *testing.T) {
	var c change.Configuration
	open, failed := 0, errors.New("refused")
	count := func(*change.Tx) {
		if open++; open != 1 {
			t.Error("two transactions are open")
		}
		open--
	}
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			for range 100 {
				c.Do(count)
				c.View(count)
				if err := c.Update(func(tx *change.Tx) error { count(tx); return failed }); err != failed {
					t.Errorf("Update returned %v", err)
				}
				if n, err := change.Result(&c, func(tx *change.Tx) (int, error) { count(tx); return 3, failed }); n != 3 || err != failed {
					t.Errorf("Result returned %d, %v", n, err)
				}
				if n, err := change.Read(&c, func(tx *change.Tx) (int, error) { count(tx); return 4, nil }); n != 4 || err != nil {
					t.Errorf("Read returned %d, %v", n, err)
				}
			}
		})
	}
	done.Wait()
}

// A transaction ends when its function panics, so that later transactions do not wait for ever.
func TestPanicEndsTransaction(t *testing.T) {
	var c change.Configuration
	func() {
		defer func() { _ = recover() }()
		c.Do(func(*change.Tx) { panic("broken") })
	}()
	c.View(func(*change.Tx) {})
	tx := c.Begin()
	if !changetest.Held(&c) {
		t.Error("an open transaction keeps nobody waiting")
	}
	tx.Commit()
}
