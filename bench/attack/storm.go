package main

import (
	"errors"
	"time"
)

func runStorm(d time.Duration, seed uint64, list []*attack) (bool, error) {
	return false, errors.New("not yet")
}
