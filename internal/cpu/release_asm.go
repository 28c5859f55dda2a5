// SPDX-License-Identifier: Apache-2.0

//go:build (amd64 || arm64) && !race

package cpu

import "sync/atomic"

// StoreRelease stores v in a after all earlier loads and stores (release order). It pairs with an
// atomic load of a. It is no full barrier, so unlike a.Store, which is an XCHG on amd64, it does not
// wait until earlier stores have reached the cache.
//
//go:noescape
func StoreRelease(a *atomic.Uint64, v uint64)
