// SPDX-License-Identifier: Apache-2.0

//go:build (!amd64 && !arm64) || race

package cpu

import "sync/atomic"

// StoreRelease stores v in a after all earlier loads and stores. A build with the race detector uses
// this ordinary atomic store, because the detector does not see assembly.
func StoreRelease(a *atomic.Uint64, v uint64) { a.Store(v) }
