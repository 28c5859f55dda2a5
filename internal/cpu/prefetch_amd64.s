#include "textflag.h"

// func prefetch(base unsafe.Pointer, size uintptr, numbers *uint32, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-32
	MOVQ base+0(FP), AX
	MOVQ size+8(FP), SI
	MOVQ numbers+16(FP), BX
	MOVQ n+24(FP), CX
	LEAQ (BX)(CX*4), CX
	JMP  check

next:
	MOVL       (BX), DX
	IMULQ      SI, DX
	PREFETCHT0 (AX)(DX*1)
	ADDQ       $4, BX

check:
	CMPQ BX, CX
	JB   next
	RET
