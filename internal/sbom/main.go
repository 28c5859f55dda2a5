// SPDX-License-Identifier: Apache-2.0

// Command sbom prints the bill of materials of Go programs as CycloneDX: the modules that
// are linked into them, with their versions and checksums. It reads them from the programs
// and needs no network.
//
//	go run ./internal/sbom VERSION PROGRAM...
package main

import (
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom VERSION PROGRAM...")
		os.Exit(2)
	}
	if err := run(os.Stdout, os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, version string, programs []string) error {
	b := cdx.NewBOM() // without a serial number and a time, so that a release has equal bytes
	b.Metadata = &cdx.Metadata{Component: &cdx.Component{BOMRef: "weft", Type: cdx.ComponentTypeApplication, Name: "weft", Version: version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}}}}
	modules := map[string]cdx.Component{}
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return err
		}
		modules["std"] = component("std", strings.TrimPrefix(info.GoVersion, "go"), "")
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			modules[m.Path] = component(m.Path, m.Version, m.Sum)
		}
	}
	list := make([]cdx.Component, 0, len(modules))
	for _, c := range modules {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	b.Components = &list
	return cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(b)
}

// component describes a module. sum is the module's checksum in go.sum; the standard library has none.
func component(path, version, sum string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	c := cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
	if sum != "" {
		c.Properties = &[]cdx.Property{{Name: "go:sum", Value: sum}}
	}
	return c
}
