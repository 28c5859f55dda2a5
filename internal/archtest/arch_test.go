// Package archtest enforces the module's architecture: who may import whom,
// where unsafe may be, and that there is no cgo. docs/ARCHITECTURE.md has the
// reasons.
package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "weft/"

// mayImport lists, for each package of the product, the module's packages that
// its own files may import; tests may import more. Imports point one way: cmd,
// control, openflow, flowtable, packet; and engine, datapath, flowtable, packet.
// What is not listed may import nothing of the module.
var mayImport = map[string][]string{
	"packet":            {},
	"port":              {"packet"},
	"port/porttest":     {"packet", "port", "internal/shm"},
	"flowtable":         {"packet", "port", "internal/shm", "internal/cpu"},
	"conntrack":         {"packet", "internal/shm", "internal/cpu"},
	"tunnel":            {"packet", "flowtable"},
	"datapath":          {"packet", "port", "flowtable", "conntrack", "tunnel", "internal/shm", "internal/cpu"},
	"vhost":             {"packet", "port", "internal/shm"},
	"vhost/vhosttest":   {"packet", "port", "vhost", "internal/shm", "internal/cpu"},
	"tap":               {"packet", "port", "internal/iovec"},
	"afpacket":          {"packet", "port", "internal/iovec"},
	"internal/iovec":    {"internal/shm"},
	"xsk":               {"packet", "port", "internal/shm"},
	"openflow":          {"packet", "port", "flowtable"},
	"engine":            {"packet", "port", "flowtable", "conntrack", "tunnel", "datapath", "vhost", "tap", "xsk", "afpacket", "internal/shm", "internal/cpu"},
	"internal/shm":      {},
	"internal/cpu":      {},
	"internal/clock":    {},
	"internal/testnet":  {},
	"packet/packettest": {"packet"},
	"api":               {},
}

// mayImportTree is the same for whole folders; "" stands for any package.
var mayImportTree = map[string][]string{
	"cmd":   {""},
	"bench": {""},
	"e2e":   {"e2e", "api"}, // sees the product only through its programs
}

// mayUseUnsafe lists the files, by pattern, that touch rings and memory shared
// with the kernel, a guest or the other process.
var mayUseUnsafe = []string{
	"internal/shm/*.go",
	"packet/gather.go",
	"internal/iovec/*.go",       // the arguments of readv and writev
	"internal/cpu/processor.go", // a number of the Go runtime's
	"internal/cpu/prefetch*.go", // any record's address
	"vhost/ring*.go", "vhost/memory*.go", "vhost/prefetch*.go",
	"vhost/rx.go", // the one copy of a header out of guest memory
	"xsk/ring*.go", "xsk/umem*.go", "xsk/socket*.go",
	"xsk/ethtool.go", // the argument of an ioctl
	"flowtable/emc*.go", "flowtable/megaflow*.go",
}

// toolingOnly names modules that are for tests and tools, never for the product.
var toolingOnly = []string{"github.com/google/gopacket", "github.com/google/go-cmp"}

// tooling are the folders that are not the product.
var tooling = []string{"bench/", "e2e/", "vhost/vhosttest/", "port/porttest/", "packet/packettest/", "internal/testnet/"}

type file struct {
	path, dir string // relative to the module
	test      bool
	imports   []string
}

func (f file) tool() bool {
	return f.test || slices.ContainsFunc(tooling, func(t string) bool { return strings.HasPrefix(f.path, t) })
}

// files parses the imports of every Go file of the module.
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

// allowed tells whether the package dir may import target, both relative to the
// module, and whether there is a rule for dir at all.
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
			if target, own := strings.CutPrefix(path, module); own && slices.Contains(tooling, target+"/") {
				t.Errorf("%s imports %s, which is for tests and tools", f.path, path)
			}
		}
	}
}

// The worker's own packages neither log nor print: what they have to say is a
// counter or a message to control.
func TestDatapathDoesNotLog(t *testing.T) {
	for _, f := range files(t) {
		if f.test || !slices.Contains([]string{"packet", "port", "flowtable", "conntrack", "tunnel", "datapath"}, f.dir) {
			continue
		}
		for _, path := range []string{"log", "log/slog"} {
			if slices.Contains(f.imports, path) {
				t.Errorf("%s imports %s", f.path, path)
			}
		}
	}
}

// The rules themselves refuse what they should.
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
		{"packet", "port", false},
		{"cmd/weftd", "control", true},
		{"engine", "control", false},
		{"e2e/demo", "e2e/lab", true},
		{"e2e/demo", "control", false},
	} {
		if ok, known := allowed(c.dir, c.target); !known || ok != c.ok {
			t.Errorf("%s imports %s: allowed %v, known %v", c.dir, c.target, ok, known)
		}
	}
	for _, newcomer := range []string{"newcomer", "control/newcomer"} {
		if _, known := allowed(newcomer, "packet"); known {
			t.Errorf("package %s, without a rule, has one", newcomer)
		}
	}
	if _, err := os.Stat("../../go.mod"); err != nil {
		t.Error(err)
	}
}
