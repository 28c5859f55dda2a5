// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package vhost

// storeRelease32 stores v at p after all earlier loads and stores (release order). It
// is not a full barrier. atomic.StoreUint32 is one, and therefore costs an XCHG on
// amd64.
//
//go:noescape
func storeRelease32(p *uint32, v uint32)

// storeRelease64 stores the 64-bit word v at p after all earlier loads and stores
// (release order).
//
//go:noescape
func storeRelease64(p *uint64, v uint64)

// fence orders all earlier loads and stores before all later ones.
//
//go:noescape
func fence()
