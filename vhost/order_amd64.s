#include "textflag.h"

// func storeRelease32(p *uint32, v uint32)
// x86 keeps stores in order: a plain one releases (Intel SDM 3A, 8.2.2).
TEXT ·storeRelease32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	MOVL CX, (AX)
	RET

// func storeRelease64(p *uint64, v uint64)
TEXT ·storeRelease64(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ CX, (AX)
	RET

// func fence()
// A locked operation on a line that is in the cache is cheaper than MFENCE.
TEXT ·fence(SB), NOSPLIT, $0-0
	LOCK
	ADDL $0, 0(SP)
	RET
