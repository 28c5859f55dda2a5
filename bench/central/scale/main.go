// SPDX-License-Identifier: Apache-2.0

// Command scale runs the scale test of weft-central. Package bench/central describes
// the test.
//
//	make build && go run ./bench/central/scale -hosts 1000 -real 8 -ports 10000
package main

import (
	"fmt"
	"os"

	"weft/bench/central"
)

func main() {
	err := error(nil)
	if file := os.Getenv(central.ConfigVariable); file != "" {
		err = central.Serve(file)
	} else {
		err = central.Command(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}
