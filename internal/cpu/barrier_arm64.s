// SPDX-License-Identifier: Apache-2.0

#include "textflag.h"

// func LoadBarrier()
TEXT ·LoadBarrier(SB), NOSPLIT, $0-0
	DMB $0x9 // ISHLD
	RET

// func StoreBarrier()
TEXT ·StoreBarrier(SB), NOSPLIT, $0-0
	DMB $0xa // ISHST
	RET
