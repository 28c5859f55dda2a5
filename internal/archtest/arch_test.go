// SPDX-License-Identifier: Apache-2.0

// Package archtest tests the module's architecture: imports between packages, files
// that use unsafe, and the absence of cgo. docs/ARCHITECTURE.md has the reasons.
package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "weft/"

// mayImport lists, for each package of the product, the packages of this module that it may import. A
// package that is not in the map may import none of them. Tests may import more.
var mayImport = map[string][]string{
	"packet":                {},
	"port":                  {"packet"},
	"port/porttest":         {"packet", "port", "internal/shm"},
	"flowtable":             {"packet", "internal/shm", "internal/cpu"},
	"conntrack":             {"packet", "flowtable", "internal/shm", "internal/cpu"},
	"bfd":                   {},
	"tunnel":                {"packet", "flowtable"},
	"datapath":              {"packet", "port", "flowtable", "conntrack", "tunnel", "bfd", "internal/shm", "internal/cpu"},
	"vhost":                 {"packet", "port", "internal/shm", "internal/safepath", "internal/privilege"},
	"vhost/vhosttest":       {"port", "vhost", "internal/shm", "internal/cpu"},
	"tap":                   {"packet", "port", "internal/iovec", "internal/netspace", "internal/shm"},
	"afpacket":              {"offload", "packet", "port", "internal/iovec", "internal/shm"},
	"offload":               {"conntrack", "flowtable", "packet", "port", "tunnel", "internal/shm"},
	"internal/iovec":        {"internal/shm"},
	"xsk":                   {"packet", "port", "internal/shm"},
	"openflow":              {"packet", "flowtable"},
	"openflow/fdb":          {},
	"openflow/xlate":        {"packet", "flowtable", "internal/share", "openflow", "openflow/fdb", "openflow/ofproto"},
	"openflow/ofproto":      {"flowtable", "internal/share", "openflow"},
	"openflow/ofp":          {"openflow", "openflow/ofproto"},
	"openflow/openflowtest": {"packet", "flowtable"},
	"openflow/slowtable":    {"openflow"},
	"openflow/ofp/ofptest":  {"openflow"},
	"engine":                {"port", "flowtable", "conntrack", "datapath", "internal/shm", "internal/cpu", "internal/sandbox", "internal/buildinfo", "internal/procstat"},
	"internal/procstat":     {},
	"internal/shm":          {},
	"internal/cpu":          {},
	"internal/share":        {},
	"internal/sandbox":      {},
	"internal/clock":        {},
	"internal/logs":         {},
	"internal/netspace":     {},
	"internal/privilege":    {},
	"internal/testnet":      {},
	"internal/safepath":     {},
	"internal/waitfor":      {},
	"internal/buildinfo":    {},
	"packet/packettest":     {"packet"},
	"api":                   {},
	"bench/traffic":         {"vhost", "vhost/vhosttest"},
	"central/wire":          {},
	"central/client":        {"central/declare", "central/pki", "central/wire"},
	"central/declare":       {"central/wire", "internal/tomltext"},
	"internal/tomltext":     {},
	"central/admin":         {"central/hub", "central/pki", "central/store", "central/wire"},
	"central/pki":           {"internal/atomicfile"},
	"internal/atomicfile":   {},
	"central/store":         {"central/wire"},
	"central/centraltest":   {"central/pki", "central/store", "central/wire", "control/agent"},
	"central/hub":           {"central/store", "central/wire"},
}

// mayImportTree has one rule for all packages in a directory and below it. The entry "" allows any
// package.
var mayImportTree = map[string][]string{
	"cmd":   {""},
	"bench": {""},
	"e2e":   {"e2e", "api"}, // end-to-end tests only run programs
}

// mayUseUnsafe has patterns of the files that may use unsafe. They access rings and shared memory.
var mayUseUnsafe = []string{
	"internal/shm/*.go",
	"packet/gather.go",
	"internal/iovec/*.go",       // the arguments of readv and writev
	"internal/cpu/processor.go", // a counter of the Go runtime
	"internal/cpu/prefetch*.go", // addresses of records of any type
	"vhost/ring*.go", "vhost/memory*.go", "vhost/prefetch*.go",
	"xsk/ring*.go",
	"xsk/ethtool.go",               // the argument of an ioctl
	"control/access/peergroups.go", // the argument of getsockopt
	"control/watchdog/ticker.go",   // the argument of read
	"vhost/vhosttest/packed.go",
	"bench/traffic/system.go",    // the arguments of sendmmsg and recvmmsg
	"central/wire/central.pb.go", // generated code
}

// toolingOnly has modules that only tests and tools may import, not the product.
var toolingOnly = []string{"github.com/google/gopacket", "github.com/google/go-cmp"}

// tooling has directories that the product must not import: tests, and comparisons with
// other switches.
var tooling = []string{"bench", "e2e", "port/porttest", "packet/packettest", "internal/testnet", "internal/waitfor", "control/workers/workertest", "control/engines/enginetest", "control/flowexport/flowexporttest", "control/pipeline/pipelinetest", "central/centraltest", "openflow/ofp/ofptest", "openflow/openflowtest", "openflow/slowtable"}

// measuring has packages below bench that are part of the product. The commands weft bench client and
// server use them, and so does the vhost-user front end.
var measuring = []string{"bench/traffic"}

type file struct {
	path, dir string // relative to the module
	test      bool
	imports   []string
}

func (f file) tool() bool { return f.test || isTooling(f.dir) }

// isTooling reports whether the package in dir belongs to the tests and tools. dir is
// relative to the module.
func isTooling(dir string) bool { return within(dir, tooling) && !within(dir, measuring) }

// within reports whether dir is one of the folders or in one of them.
func within(dir string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return dir == f || strings.HasPrefix(dir, f+"/") })
}

func files(t *testing.T) []file {
	t.Helper()
	root := "../.."
	var all []file
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		all = append(all, file{rel, filepath.Dir(rel), strings.HasSuffix(name, "_test.go"), imported(parsed)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d files found from %s", len(all), root)
	}
	return all
}

func imported(f *ast.File) []string {
	var paths []string
	for _, spec := range f.Imports {
		if path, err := strconv.Unquote(spec.Path.Value); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// allowed reports whether the package in dir may import the package target, and whether dir has a rule
// at all.
func allowed(dir, target string) (ok, known bool) {
	if list, exact := controlMayImport[dir]; exact {
		return slices.Contains(list, target), true
	}
	if list, exact := mayImport[dir]; exact {
		return slices.Contains(list, target), true
	}
	for tree, list := range mayImportTree {
		if dir != tree && !strings.HasPrefix(dir, tree+"/") {
			continue
		}
		return slices.ContainsFunc(list, func(p string) bool {
			return p == "" || p == target || strings.HasPrefix(target, p+"/")
		}), true
	}
	return false, false
}

func TestImportsPointOneWay(t *testing.T) {
	for _, f := range files(t) {
		if f.test {
			continue
		}
		for _, path := range f.imports {
			target, own := strings.CutPrefix(path, module)
			if !own {
				continue
			}
			if ok, known := allowed(f.dir, target); !known {
				t.Errorf("%s imports %s: package %s has no line in mayImport", f.path, target, f.dir)
			} else if !ok {
				t.Errorf("%s imports %s, which package %s may not", f.path, target, f.dir)
			}
		}
	}
}

func TestUnsafeStaysInItsFiles(t *testing.T) {
	for _, f := range files(t) {
		if f.tool() || !slices.Contains(f.imports, "unsafe") {
			continue
		}
		if !slices.ContainsFunc(mayUseUnsafe, func(pattern string) bool {
			ok, err := filepath.Match(pattern, f.path)
			if err != nil {
				t.Fatal(err)
			}
			return ok
		}) {
			t.Errorf("%s imports unsafe and is not in mayUseUnsafe", f.path)
		}
	}
}

func TestNoCgo(t *testing.T) {
	for _, f := range files(t) {
		if slices.Contains(f.imports, "C") {
			t.Errorf("%s uses cgo", f.path)
		}
	}
}

func TestToolingStaysOutOfTheProduct(t *testing.T) {
	for _, f := range files(t) {
		if f.tool() {
			continue
		}
		for _, path := range f.imports {
			for _, m := range toolingOnly {
				if path == m || strings.HasPrefix(path, m+"/") {
					t.Errorf("%s imports %s, which is for tests and tools", f.path, path)
				}
			}
			if target, own := strings.CutPrefix(path, module); own && isTooling(target) {
				t.Errorf("%s imports %s, which is for tests and tools", f.path, path)
			}
		}
	}
}

// quiet has the packages whose code runs in workers. They must not log or print.
var quiet = []string{"packet", "port", "flowtable", "conntrack", "tunnel", "datapath"}

func TestDatapathDoesNotLog(t *testing.T) {
	for _, f := range files(t) {
		if f.test || !slices.Contains(quiet, f.dir) {
			continue
		}
		for _, path := range []string{"log", "log/slog"} {
			if slices.Contains(f.imports, path) {
				t.Errorf("%s imports %s", f.path, path)
			}
		}
	}
}

// The rules allow or forbid the imports in this table.
func TestRulesRefuse(t *testing.T) {
	for _, c := range []struct {
		dir, target string
		ok          bool
	}{
		{"datapath", "flowtable", true},
		{"datapath", "control", false},
		{"datapath", "openflow", false},
		{"datapath", "vhost", false},
		{"openflow", "datapath", false},
		{"openflow", "openflow/ofproto", false},
		{"openflow/ofproto", "openflow/xlate", false},
		{"packet", "port", false},
		{"cmd/weftd", "control", true},
		{"engine", "control", false},
		{"e2e/demo", "e2e/lab", true},
		{"e2e/demo", "control", false},
		{"bench/traffic", "bench/replica", false},
	} {
		if ok, known := allowed(c.dir, c.target); !known || ok != c.ok {
			t.Errorf("%s imports %s: allowed %v, known %v", c.dir, c.target, ok, known)
		}
	}
	for _, newcomer := range []string{"newcomer", "control/newcomer"} {
		if _, known := allowed(newcomer, "packet"); known {
			t.Errorf("package %s has an import rule, want none", newcomer)
		}
	}
	for dir, tool := range map[string]bool{
		"bench": true, "bench/suite": true, "bench/replica": true, "e2e/lab": true, "port/porttest": true,
		"bench/traffic": false, "benches": false, "port": false, "vhost": false,
	} {
		if isTooling(dir) != tool {
			t.Errorf("%s counts as tooling: %v", dir, !tool)
		}
	}
}

// Every rule applies to a package, file or import that exists. An outdated rule could hide a mistake.
func TestRowsMatch(t *testing.T) {
	for _, row := range staleRows(files(t)) {
		t.Error(row)
	}
}

func staleRows(sources []file) (stale []string) {
	folder := func(dir string) bool {
		return slices.ContainsFunc(sources, func(f file) bool { return within(f.dir, []string{dir}) })
	}
	imports := func(dir, target string) bool {
		return slices.ContainsFunc(sources, func(f file) bool {
			return !f.test && within(f.dir, []string{dir}) && slices.ContainsFunc(f.imports, func(path string) bool {
				own, ok := strings.CutPrefix(path, module)
				return ok && within(own, []string{target})
			})
		})
	}
	for _, rules := range []map[string][]string{mayImport, mayImportTree} {
		for dir, targets := range rules {
			if !folder(dir) {
				stale = append(stale, "there is no package "+dir+", which the rules of imports name")
			}
			for _, target := range targets {
				if target != "" && !imports(dir, target) {
					stale = append(stale, dir+" does not import "+target+", which its rule allows")
				}
			}
		}
	}
	for _, dir := range slices.Concat(tooling, measuring, quiet) {
		if !folder(dir) {
			stale = append(stale, "there is no package "+dir)
		}
	}
	for i, pattern := range mayUseUnsafe {
		if !slices.ContainsFunc(sources, func(f file) bool {
			ok, _ := filepath.Match(pattern, f.path)
			return ok && !f.test && slices.Contains(f.imports, "unsafe") && !matchesAny(f.path, rowsBut(mayUseUnsafe, i))
		}) {
			stale = append(stale, "no file of "+pattern+" uses unsafe, or another row has them all")
		}
	}
	for _, m := range toolingOnly {
		if !slices.ContainsFunc(sources, func(f file) bool {
			return slices.ContainsFunc(f.imports, func(path string) bool { return path == m || strings.HasPrefix(path, m+"/") })
		}) {
			stale = append(stale, "nothing imports "+m)
		}
	}
	return stale
}

func matchesAny(path string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := filepath.Match(p, path)
		return ok
	})
}

// rowsBut returns a copy of the list without row i.
func rowsBut(list []string, i int) []string { return slices.Delete(slices.Clone(list), i, i+1) }

// No list has the same row twice, and tooling has no directory below another one. Otherwise a rule
// would still apply after one of its rows was removed.
func TestNoRowTwice(t *testing.T) {
	lists := map[string][]string{"toolingOnly": toolingOnly, "tooling": tooling, "measuring": measuring, "quiet": quiet,
		"mayUseUnsafe": mayUseUnsafe, "controlOrder": controlOrder, "proseWords": proseWords}
	for name, rules := range map[string]map[string][]string{"mayImport": mayImport, "mayImportTree": mayImportTree, "controlMayImport": controlMayImport} {
		for dir, targets := range rules {
			lists[name+" of "+dir] = targets
		}
	}
	for name, list := range lists {
		for i, row := range list {
			if slices.Contains(list[:i], row) {
				t.Errorf("%s has %s twice; remove one", name, row)
			}
		}
	}
	for i, dir := range tooling {
		if within(dir, rowsBut(tooling, i)) {
			t.Errorf("tooling has %s and a directory above it; remove %s", dir, dir)
		}
	}
}

// In a module without files, staleRows reports every rule as outdated.
func TestStaleRowsAreFound(t *testing.T) {
	rows := len(mayImport) + len(mayImportTree) + len(tooling) + len(measuring) + len(quiet) + len(mayUseUnsafe) + len(toolingOnly)
	for _, rules := range []map[string][]string{mayImport, mayImportTree} {
		for _, targets := range rules {
			rows += len(slices.DeleteFunc(slices.Clone(targets), func(t string) bool { return t == "" }))
		}
	}
	if n := len(staleRows(nil)); n != rows {
		t.Errorf("%d of %d rows found", n, rows)
	}
}
