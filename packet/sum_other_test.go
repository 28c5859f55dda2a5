//go:build !amd64

package packet

func setSumByBlocks(bool) {}
