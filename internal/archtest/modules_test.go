// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"slices"
	"strings"
	"testing"
)

// links returns the packages that are linked into the program in dir: those of this module, and those
// of other modules that they import.
func links(sources []file, dir string) (own, foreign []string) {
	own = []string{dir}
	for i := 0; i < len(own); i++ {
		for _, f := range sources {
			if f.test || f.dir != own[i] {
				continue
			}
			for _, path := range f.imports {
				if target, ok := strings.CutPrefix(path, module); !ok {
					foreign = append(foreign, path)
				} else if !slices.Contains(own, target) {
					own = append(own, target)
				}
			}
		}
	}
	return own, foreign
}

// Some modules may be linked into only one program. Users of the other programs then do not pay for
// them.
func TestModulesOfOneProgram(t *testing.T) {
	all := files(t)
	for prefix, only := range map[string]string{"go.etcd.io/etcd/": "cmd/weft-central", "github.com/containernetworking/": "cmd/weft-cni",
		"github.com/insomniacslk/dhcp/": "cmd/weftd",
		"github.com/mdlayher/ndp":       "cmd/weftd"} {
		for _, dir := range []string{"cmd/weftd", "cmd/weft", "cmd/weft-central", "cmd/weft-cni"} {
			_, foreign := links(all, dir)
			linked := slices.ContainsFunc(foreign, func(path string) bool { return strings.HasPrefix(path, prefix) })
			switch {
			case linked && dir != only:
				t.Errorf("%s links %s, which only %s may", dir, prefix, only)
			case !linked && dir == only:
				t.Errorf("%s does not link %s: the rule finds nothing", dir, prefix)
			}
		}
	}
}
