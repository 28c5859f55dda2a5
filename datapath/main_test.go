// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os"
	"runtime"
	"testing"
)

// Workers never yield their Go processors (GOMAXPROCS). As in the engine, the tests
// need more of these than workers: on two cores, two busy workers would otherwise
// leave none to the tests.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	os.Exit(m.Run())
}
