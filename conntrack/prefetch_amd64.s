#include "textflag.h"

// A bucket is 64 bytes, a conn 128.

// func prefetchBuckets(base *bucket, lines *[32]uint32, n int)
TEXT ·prefetchBuckets(SB), NOSPLIT, $0-24
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

// func prefetchConns(base *conn, lines *[32]uint32, n int)
TEXT ·prefetchConns(SB), NOSPLIT, $0-24
	MOVQ base+0(FP), AX
	MOVQ lines+8(FP), BX
	MOVQ n+16(FP), CX
	LEAQ (BX)(CX*4), CX
	JMP  check

next:
	MOVL       (BX), DX
	SHLQ       $7, DX
	PREFETCHT0 (AX)(DX*1)
	ADDQ       $4, BX

check:
	CMPQ BX, CX
	JB   next
	RET
