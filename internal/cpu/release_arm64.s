//go:build !race

#include "textflag.h"

// func StoreRelease(a *atomic.Uint64, v uint64)
TEXT ·StoreRelease(SB), NOSPLIT, $0-16
	MOVD a+0(FP), R0
	MOVD v+8(FP), R1
	STLR R1, (R0)
	RET
