// SPDX-License-Identifier: Apache-2.0

package packet

import "golang.org/x/sys/cpu"

func setSumByBlocks(enabled bool) { sumByBlocks = enabled && cpu.X86.HasAVX2 }
