// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"os"
	"runtime"
	"testing"
)

// Workers never yield their Go processors. As in the engine, there must be more
// processors than workers; otherwise two busy workers on two cores would leave none
// to the tests.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	os.Exit(m.Run())
}
