// SPDX-License-Identifier: Apache-2.0

//go:build !amd64 && !arm64

package vhost

import "sync/atomic"

var fenced atomic.Uint32

func storeRelease32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

func storeRelease64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

func fence() { fenced.Add(1) }
