// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package vhost

// storeRelease32 stores v at p after all earlier loads and stores. Unlike
// atomic.StoreUint32, which costs an XCHG on amd64, it is no full barrier.
//
//go:noescape
func storeRelease32(p *uint32, v uint32)

// storeRelease64 stores v at p after all earlier loads and stores.
//
//go:noescape
func storeRelease64(p *uint64, v uint64)

// fence orders all earlier loads and stores before all later ones.
//
//go:noescape
func fence()
