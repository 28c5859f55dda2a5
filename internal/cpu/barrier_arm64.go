// SPDX-License-Identifier: Apache-2.0

package cpu

// LoadBarrier makes all earlier loads come before all later ones. A load of sync/atomic
// (LDAR) only makes later ones wait, so it cannot check that plain loads before it were
// in time.
func LoadBarrier()

// StoreBarrier makes all earlier stores come before all later ones. A store of sync/atomic
// (STLR) and a compare-and-swap of processors without LSE do not hold back later stores.
func StoreBarrier()
