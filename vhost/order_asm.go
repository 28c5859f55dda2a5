//go:build amd64 || arm64

package vhost

// storeRelease32 makes v visible at p after all earlier loads and stores. Unlike
// atomic.StoreUint32 it is no full barrier, which on amd64 costs an XCHG.
//
//go:noescape
func storeRelease32(p *uint32, v uint32)

// storeRelease64 is storeRelease32 for a longer word.
//
//go:noescape
func storeRelease64(p *uint64, v uint64)

// fence orders all earlier loads and stores before all later ones.
//
//go:noescape
func fence()
