// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"slices"
	"strings"
	"testing"
)

// links returns the packages that become part of a program. own has the packages of this
// module. foreign has the packages of other modules that they import.
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

// Only weft-central links etcd.
func TestOnlyCentralLinksEtcd(t *testing.T) {
	all := files(t)
	etcd := func(dir string) bool {
		_, foreign := links(all, dir)
		return slices.ContainsFunc(foreign, func(p string) bool { return strings.HasPrefix(p, "go.etcd.io/etcd/") })
	}
	for _, dir := range []string{"cmd/weftd", "cmd/weft"} {
		if etcd(dir) {
			t.Errorf("%s links etcd", dir)
		}
	}
	if !etcd("cmd/weft-central") {
		t.Error("cmd/weft-central does not link etcd: the rule finds nothing")
	}
}
