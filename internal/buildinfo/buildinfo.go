// SPDX-License-Identifier: Apache-2.0

// Package buildinfo names the build of a program.
package buildinfo

import (
	"runtime/debug"
	"sync"
)

// These variables are of type string so that the linker can set them:
//
//	go build -ldflags "-X weft/internal/buildinfo.commit=$(git rev-parse HEAD)"
var (
	version = "0.4-dev"
	// commit overrides the commit that go build records. With -buildvcs=false, or
	// outside of a git repository, go build records none.
	commit = ""
)

// unknown stands for the commit if the build did not record one.
const unknown = "unknown"

// Build tells from which source a program was built.
type Build struct {
	Version string `json:"version"`
	// 12 hexadecimal digits, with "-dirty" if files were changed; or "unknown"
	Commit string `json:"commit"`
}

// String returns the version and the commit in a form for people.
func (b Build) String() string { return b.Version + " (commit " + b.Commit + ")" }

// Own returns the build of this program.
var Own = sync.OnceValue(func() Build {
	settings := map[string]string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
	}
	return buildOf(settings)
})

// buildOf returns the Build for the given build settings (debug.BuildInfo.Settings).
func buildOf(settings map[string]string) Build {
	b := Build{Version: version, Commit: unknown}
	if commit != "" {
		b.Commit = commit
	} else if r := settings["vcs.revision"]; r != "" {
		b.Commit = r[:min(12, len(r))]
		if settings["vcs.modified"] == "true" {
			b.Commit += "-dirty"
		}
	}
	return b
}
