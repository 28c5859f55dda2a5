// Command page makes bench/results/README.md, its pictures, and the figures in
// the project's README out of the results committed beside it. It measures
// nothing, and writes the same bytes for the same results.
//
//	go run ./bench/page [-results DIR] [-readme FILE]
package main

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	results := flag.String("results", "bench/results", "folder of the results")
	readme := flag.String("readme", "README.md", "file whose figures are written anew")
	flag.Parse()
	if flag.NArg() > 0 {
		exit(fmt.Errorf("%q is not understood: options only, see -help", flag.Arg(0)))
	}
	files, err := build(*results, *readme)
	exit(err)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		exit(os.WriteFile(name, []byte(files[name]), 0o644))
	}
	exit(removeOthers(*results, files))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "page:", err)
		os.Exit(1)
	}
}

// build makes all files, by their paths.
func build(results, readme string) (map[string]string, error) {
	rows, err := load(results)
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	page, pictures, err := write(rows)
	if err != nil {
		return nil, err
	}
	files[filepath.Join(results, "README.md")] = page
	for name, svg := range pictures {
		files[filepath.Join(results, name)] = svg
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		return nil, err
	}
	if files[readme], err = fillFigures(string(text), rows); err != nil {
		return nil, fmt.Errorf("%s: %w", readme, err)
	}
	return files, nil
}

// removeOthers removes pictures of rows that are no more.
func removeOthers(results string, files map[string]string) error {
	svgs, err := filepath.Glob(filepath.Join(results, "*.svg"))
	if err != nil {
		return err
	}
	for _, svg := range svgs {
		if _, made := files[svg]; !made {
			if err := os.Remove(svg); err != nil {
				return err
			}
		}
	}
	return nil
}
