// SPDX-License-Identifier: Apache-2.0

//go:build (amd64 || arm64) && !race

package cpu

import "sync/atomic"

// StoreRelease stores v in a after all earlier loads and stores. It pairs with an atomic load
// of a. Unlike a.Store, which is an XCHG on amd64, it is no full barrier and does not wait for
// earlier stores to reach the cache.
//
//go:noescape
func StoreRelease(a *atomic.Uint64, v uint64)
