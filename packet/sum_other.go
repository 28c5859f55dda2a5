// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package packet

const (
	sumBlock    = 32
	sumLeast    = 128
	sumByBlocks = false
)

func sumBlocks(*byte, int) uint64            { panic("packet: no assembly here") }
func copySumBlocks(_, _ *byte, _ int) uint64 { panic("packet: no assembly here") }
