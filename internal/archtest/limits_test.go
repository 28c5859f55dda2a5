// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// evaluator computes constants of a package from their source code.
type evaluator map[string]ast.Expr

var durations = map[string]time.Duration{
	"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second, "Minute": time.Minute,
	"Hour": time.Hour,
}

// load returns the expressions of the constants of the package in dir, by name. It leaves out
// constants that repeat the expression of the line before.
func load(dir string) (evaluator, error) {
	e := evaluator{}
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			return nil, err
		}
		for _, decl := range parsed.Decls {
			g, ok := decl.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i := range v.Values {
					e[v.Names[i].Name] = v.Values[i]
				}
			}
		}
	}
	return e, nil
}

func (e evaluator) value(x ast.Expr) (constant.Value, error) {
	switch x := x.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(x.Value, x.Kind, 0), nil
	case *ast.ParenExpr:
		return e.value(x.X)
	case *ast.SelectorExpr:
		if d, ok := durations[x.Sel.Name]; ok {
			return constant.MakeInt64(int64(d)), nil
		}
	case *ast.Ident:
		if of, ok := e[x.Name]; ok {
			return e.value(of)
		}
	case *ast.BinaryExpr:
		a, err := e.value(x.X)
		if err != nil {
			return nil, err
		}
		b, err := e.value(x.Y)
		if err != nil {
			return nil, err
		}
		if x.Op == token.SHL {
			n, _ := constant.Uint64Val(b)
			return constant.Shift(a, x.Op, uint(n)), nil
		}
		if x.Op == token.QUO {
			return constant.BinaryOp(a, token.QUO_ASSIGN, b), nil // of integers
		}
		return constant.BinaryOp(a, x.Op, b), nil
	}
	return nil, fmt.Errorf("%T is not understood", x)
}

var limitText = regexp.MustCompile(`^([0-9,]+)(?: (KiB|MiB|GiB|µs|ms|s|min|h))?$`)

var units = map[string]int64{
	"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
	"µs": int64(time.Microsecond), "ms": int64(time.Millisecond), "s": int64(time.Second), "min": int64(time.Minute), "h": int64(time.Hour),
}

// documented returns a limit of docs/limits.md, such as "64 KiB", as a number. Times
// are in nanoseconds.
func documented(text string) (int64, error) {
	m := limitText.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("%q is no number with a known unit", text)
	}
	var n int64
	if _, err := fmt.Sscan(strings.ReplaceAll(m[1], ",", ""), &n); err != nil {
		return 0, err
	}
	return n * units[m[2]], nil
}

// limitRows matches a row of the tables in docs/limits.md, and captures the limit, the file and the
// constant.
var limitRows = regexp.MustCompile("(?m)^\\| [^|]+ \\| ([^|]+) \\| [^|]+ \\| `([^`]+)` `([^`]+)` \\|$")

// limitName matches names of constants that are limits.
var limitName = regexp.MustCompile(`^[mM]ax[A-Z]|(Rate|Burst|Timeout|Patience)$`)

// notHeld lists constants that are named like limits but bound nothing that a peer makes the switch
// keep or wait for. They are steps and sizes of the code itself, or copies of limits that have a row
// under another name.
var notHeld = map[string]bool{
	"control/access maxAcceptPause": true, "control/access maxGroups": true,
	"control/ofconn maxBackoff": true, "control/ofconn maxEager": true, "control/ofconn maxEventWrite": true,
	"control/ovsdb maxBackoff":  true,
	"control/pipeline MaxFlows": true,
	"conntrack MaxTimeout":      true, "conntrack maxBuckets": true, "conntrack maxCommand": true, "conntrack maxLockPauses": true,
	"conntrack maxNATDebtNS": true, "conntrack maxNumberText": true, "conntrack maxRefreshNS": true, "conntrack maxRestarts": true,
	"conntrack maxScale": true, "conntrack maxShiftAge": true, "conntrack maxText4": true, "conntrack maxText6": true,
	"openflow/xlate MaxPortBuckets": true, "openflow/xlate maxMissed": true,
	"vhost maxHeldBack": true, "vhost maxPage": true, "vhost maxPayload": true, "vhost maxSegments": true,
}

// Some packages keep something for a peer: weft-central or a host's agent, a front end, an OpenFlow
// peer, a database, a tool, an API client, or the frames of a guest. Each limit of these packages has
// a row in docs/limits.md.
func TestLimitsHaveRows(t *testing.T) {
	const root = "../.."
	doc, err := os.ReadFile(filepath.Join(root, "docs/limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, row := range limitRows.FindAllStringSubmatch(string(doc), -1) {
		rows[filepath.Dir(row[2])+" "+row[3]] = true
	}
	found := 0
	for _, dir := range []string{"central/admin", "central/hub", "central/pki", "central/store", "cmd/weft-central", "control/agent", "control/central",
		"control/access", "control/megaflows", "control/observe", "control/ofconn", "control/ovsdb", "control/pipeline",
		"control/underlay", "control/unixctl", "conntrack", "openflow/fdb", "openflow/xlate", "vhost"} {
		constants, err := load(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for name := range constants {
			if !limitName.MatchString(name) || notHeld[dir+" "+name] {
				continue
			}
			if found++; !rows[dir+" "+name] {
				t.Errorf("docs/limits.md has no row for %s of %s", name, dir)
			}
		}
	}
	if found < 130 {
		t.Errorf("only %d limits are found", found)
	}
}

// Each limit in docs/limits.md equals its constant.
func TestLimitsAreDocumented(t *testing.T) {
	const root = "../.."
	doc, err := os.ReadFile(filepath.Join(root, "docs/limits.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := limitRows.FindAllStringSubmatch(string(doc), -1)
	if want := strings.Count(string(doc), "\n| ") - strings.Count(string(doc), "| What |"); len(rows) != want {
		t.Errorf("%d of %d rows are understood", len(rows), want)
	}
	for _, row := range rows {
		text, file, name := row[1], row[2], row[3]
		source, err := os.ReadFile(filepath.Join(root, file))
		if err != nil || !declares(string(source), name) {
			t.Errorf("%s does not declare %s", file, name)
			continue
		}
		e, err := load(filepath.Join(root, filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		v, err := e.value(e[name])
		if err != nil {
			t.Errorf("%s %s: %v", file, name, err)
			continue
		}
		want, err := documented(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if n, exact := constant.Int64Val(constant.ToInt(v)); !exact || n != want {
			t.Errorf("%s %s is %s, docs/limits.md says %s", file, name, v, text)
		}
	}
}
