// SPDX-License-Identifier: Apache-2.0

// Command page writes bench/results/README.md and the table of results in the project's
// README from the committed result files. It removes result files whose rows are all in
// newer files. It measures nothing, and the same result files give the same bytes.
//
//	go run ./bench/page [-results DIR] [-readme FILE]
//	go run ./bench/page -benchstat FILE    prints a result for benchstat
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"weft/bench"
)

func main() {
	results := flag.String("results", "bench/results", "folder of the results")
	readme := flag.String("readme", "README.md", "file whose figures are written anew")
	stat := flag.String("benchstat", "", "print this result in the form that benchstat reads, and do nothing else; -: standard input")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(fmt.Errorf("%q is not understood: options only, see -help", flag.Arg(0)))
	}
	if *stat != "" {
		exit(benchstat(*stat))
		return
	}
	files, superseded, err := build(*results, *readme)
	exit(err)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		exit(os.WriteFile(name, []byte(files[name]), 0o644))
	}
	for _, name := range superseded {
		exit(os.Remove(name))
	}
}

func benchstat(file string) error {
	if file == "-" {
		file = os.Stdin.Name()
	}
	r, err := bench.ReadReport(file)
	if err != nil {
		return err
	}
	return r.Benchstat(os.Stdout)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

func build(results, readme string) (files map[string]string, superseded []string, err error) {
	rows, superseded, err := load(results)
	if err != nil {
		return nil, nil, err
	}
	files = map[string]string{filepath.Join(results, "README.md"): write(rows)}
	text, err := os.ReadFile(readme)
	if err != nil {
		return nil, nil, err
	}
	if files[readme], err = fillFigures(string(text), rows); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", readme, err)
	}
	return files, superseded, nil
}
