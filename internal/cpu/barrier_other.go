// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package cpu

import "sync/atomic"

var barrier atomic.Uint32

// LoadBarrier makes all earlier loads come before all later ones.
func LoadBarrier() { barrier.Add(1) }

// StoreBarrier makes all earlier stores come before all later ones.
func StoreBarrier() { barrier.Add(1) }
