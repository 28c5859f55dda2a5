//go:build !race

#include "textflag.h"

// func StoreRelease(a *atomic.Uint64, v uint64)
// x86 keeps stores in order, so a plain store is a release (Intel SDM 3A, 8.2.2).
TEXT ·StoreRelease(SB), NOSPLIT, $0-16
	MOVQ a+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ CX, (AX)
	RET
