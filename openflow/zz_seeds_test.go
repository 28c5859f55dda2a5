package openflow

import (
	"os"
	"strconv"
	"testing"
)

func TestManySeeds(t *testing.T) {
	from, _ := strconv.Atoi(os.Getenv("SEED_FROM"))
	to, _ := strconv.Atoi(os.Getenv("SEED_TO"))
	for seed := from; seed < to; seed++ {
		generateForOracle(t, uint64(seed))
	}
}
