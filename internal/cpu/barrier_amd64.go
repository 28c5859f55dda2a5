// SPDX-License-Identifier: Apache-2.0

package cpu

// LoadBarrier makes all earlier loads come before all later ones. The processor orders them
// so by itself, and the compiler moves no load past an atomic operation, so the function is
// empty.
func LoadBarrier() {}

// StoreBarrier makes all earlier stores come before all later ones. It is empty, because the processor
// and the compiler keep this order, too.
func StoreBarrier() {}
