// SPDX-License-Identifier: Apache-2.0

//go:build !race

package sandbox

// detector is empty: the binary has no race detector.
var detector []string
