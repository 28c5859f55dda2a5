#include "textflag.h"

// func prefetchLines(base *uint64, lines *[32]uint32, n int)
TEXT ·prefetchLines(SB), NOSPLIT, $0-24
	MOVQ base+0(FP), AX
	MOVQ lines+8(FP), BX
	MOVQ n+16(FP), CX
	LEAQ (BX)(CX*4), CX
	JMP  check

next:
	MOVL       (BX), DX
	SHLQ       $6, DX
	PREFETCHT0 (AX)(DX*1)
	ADDQ       $4, BX

check:
	CMPQ BX, CX
	JB   next
	RET
