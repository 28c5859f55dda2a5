// SPDX-License-Identifier: Apache-2.0

package cpu

// LoadBarrier makes all earlier loads come before all later ones. An atomic load of package
// sync/atomic (LDAR) only holds back later loads. It cannot order plain loads before it.
func LoadBarrier()

// StoreBarrier makes all earlier stores come before all later ones. An atomic store of package
// sync/atomic (STLR) does not hold back later stores, nor does a compare-and-swap on processors
// without LSE.
func StoreBarrier()
