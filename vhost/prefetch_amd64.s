#include "textflag.h"

// A head is 24 bytes and begins with its guest address (prefetch.go).

// func prefetchRead(heads *head, n int, delta, skip uintptr)
TEXT ·prefetchRead(SB), NOSPLIT, $0-32
	MOVQ heads+0(FP), AX
	MOVQ n+8(FP), CX
	MOVQ delta+16(FP), BX
	MOVQ skip+24(FP), SI
	JMP  check

next:
	MOVQ (AX), DX
	MOVL 8(AX), DI
	ADDQ BX, DX
	LEAQ -1(DX)(DI*1), DI
	ADDQ SI, DX
	BYTE $0x0f; BYTE $0x0d; BYTE $0x0a             // PREFETCHW (DX)
	XORQ DX, DI
	CMPQ DI, $64
	JCS  one
	BYTE $0x0f; BYTE $0x0d; BYTE $0x4a; BYTE $0x40 // PREFETCHW 64(DX)

one:
	ADDQ $24, AX
	DECQ CX

check:
	TESTQ CX, CX
	JG    next
	RET

// func prefetchWrite(heads *head, n int, delta, skip uintptr)
TEXT ·prefetchWrite(SB), NOSPLIT, $0-32
	MOVQ heads+0(FP), AX
	MOVQ n+8(FP), CX
	MOVQ delta+16(FP), BX
	MOVQ skip+24(FP), SI
	JMP  check

next:
	MOVQ  (AX), DX
	ADDQ  BX, DX
	LEAQ  (DX)(SI*1), DI
	TESTQ $63, DI
	JEQ   apart
	BYTE  $0x0f; BYTE $0x0d; BYTE $0x0a             // PREFETCHW (DX)
	BYTE  $0x0f; BYTE $0x0d; BYTE $0x4a; BYTE $0x40 // PREFETCHW 64(DX)
	JMP   done

apart:
	PREFETCHT0 (DX)
	BYTE       $0x0f; BYTE $0x0d; BYTE $0x0f // PREFETCHW (DI)

done:
	ADDQ $24, AX
	DECQ CX

check:
	TESTQ CX, CX
	JG    next
	RET

// func prefetchSpanWrite(from, to uintptr)
TEXT ·prefetchSpanWrite(SB), NOSPLIT, $0-16
	MOVQ from+0(FP), AX
	MOVQ to+8(FP), BX
	ANDQ $~63, AX

line:
	BYTE $0x0f; BYTE $0x0d; BYTE $0x08             // PREFETCHW (AX)
	ADDQ $64, AX
	CMPQ AX, BX
	JB   line
	RET

// func prefetchSpanRead(from, to uintptr)
TEXT ·prefetchSpanRead(SB), NOSPLIT, $0-16
	MOVQ from+0(FP), AX
	MOVQ to+8(FP), BX
	ANDQ $~63, AX

line:
	PREFETCHT0 (AX)
	ADDQ $64, AX
	CMPQ AX, BX
	JB   line
	RET
