#include "textflag.h"

// compareEntries compares 48 bytes of each key under the union with its entry, in three
// registers of 16 bytes (SSE2, which every amd64 processor has). Sizes and offsets are
// those that TestLineSizes checks: a Key has 248 bytes, a digest 16 with its form at 8,
// an exactEntry 64 with its flow at 48 and its form at 56, a Flow 32.

// func compareEntries(n uint, frames *uint8, entries *uint32, keys, union *Key, digests *digest,
//                  exact *exactEntry, flows *Flow, slots, expects *uint32)
TEXT ·compareEntries(SB), NOSPLIT, $0-80
	MOVQ  n+0(FP), CX
	MOVQ  frames+8(FP), SI
	MOVQ  entries+16(FP), DI
	MOVQ  keys+24(FP), R8
	MOVQ  union+32(FP), AX
	MOVQ  digests+40(FP), R9
	MOVQ  exact+48(FP), R10
	MOVQ  flows+56(FP), R14
	MOVQ  slots+64(FP), R11
	MOVQ  expects+72(FP), R12
	MOVOU (AX), X8
	MOVOU 16(AX), X9
	MOVOU 32(AX), X10
	PXOR  X7, X7
	MOVL  $0xffffffff, R13       // NoSlot
	XORL  BX, BX
	JMP   check

next:
	MOVBLZX    (SI)(BX*1), DX
	MOVL       (DI)(BX*4), AX
	IMUL3Q     $248, DX, R15
	SHLQ       $4, DX
	SHLQ       $6, AX
	MOVOU      (R8)(R15*1), X0
	MOVOU      16(R8)(R15*1), X1
	MOVOU      32(R8)(R15*1), X2
	PAND       X8, X0
	PAND       X9, X1
	PAND       X10, X2
	PXOR       (R10)(AX*1), X0
	PXOR       16(R10)(AX*1), X1
	PXOR       32(R10)(AX*1), X2
	MOVQ       8(R9)(DX*1), X3
	MOVQ       56(R10)(AX*1), X4
	PXOR       X4, X3
	POR        X1, X0
	POR        X3, X2
	POR        X2, X0
	MOVQ       48(R10)(AX*1), R15
	PCMPEQB    X7, X0
	PMOVMSKB   X0, DX
	CMPL       DX, $0xffff
	CMOVQNE    R13, R15
	MOVL       R15, (R11)(BX*4)
	MOVL       R15, DX
	SHRQ       $32, R15
	MOVL       R15, (R12)(BX*4)
	SHLQ       $5, DX
	PREFETCHT0 (R14)(DX*1)
	INCQ       BX

check:
	CMPQ BX, CX
	JB   next
	RET
