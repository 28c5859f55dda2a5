// SPDX-License-Identifier: Apache-2.0

package packet

import "golang.org/x/sys/cpu"

func setSumByBlocks(on bool) { sumByBlocks = on && cpu.X86.HasAVX2 }
