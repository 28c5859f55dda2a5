package datapath

import (
	"os"
	"runtime"
	"testing"
)

// Workers keep their processors of the runtime. As in the engine there are more of
// them, or two busy workers on two cores would leave the tests none.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(runtime.NumCPU() + 2)
	os.Exit(m.Run())
}
