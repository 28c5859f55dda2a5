// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package cpu

func pause()
