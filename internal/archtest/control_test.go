// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"slices"
	"strings"
	"testing"
)

// controlMayImport lists, for control and each package below it, the packages of this module that it
// may import. A package takes its own locks before those of the packages that it imports. So these
// rules are also the lock order of control.
var controlMayImport = map[string][]string{
	"control": {
		"control/change",
		"control/access",
		"control/bridges",
		"control/ofconn",
		"control/ovsdb",
		"control/unixctl",
		"control/appctl",
		"control/rest",
		"control/tables",
		"control/observe",
		"control/tracking",
		"control/macs",
		"control/statistics",
		"control/engines",
		"control/central",
		"control/flowexport",
		"control/ports",
		"control/pipeline",
		"control/store",
		"control/underlay",
		"control/workers",
		"control/limits",
		"control/usererr",
		"flowtable", "conntrack", "datapath", "openflow", "openflow/ofp", "openflow/ofproto", "engine", "api",
		"internal/cpu", "internal/clock", "internal/buildinfo", "internal/logs", "internal/privilege",
	},
	"control/rest": {
		"control/change", "control/access", "control/bridges", "control/tables", "control/observe", "control/tracking", "control/macs", "control/statistics", "control/engines", "control/central", "control/ports", "control/pipeline", "control/underlay", "control/limits", "control/loop", "control/usererr",
		"packet", "flowtable", "conntrack", "datapath", "openflow", "api",
		"internal/clock", "internal/buildinfo", "internal/logs", "internal/privilege",
	},
	"control/appctl": {
		"control/bond", "control/bridges", "control/macs", "control/observe", "control/ovsdb", "control/pipeline", "control/ports", "control/statistics", "control/tracking", "control/unixctl", "control/usererr",
		"api", "conntrack", "internal/buildinfo", "internal/logs", "openflow",
	},
	"control/bridges": {
		"control/change", "control/access", "control/limits", "control/observe", "control/ofconn", "control/pipeline", "control/ports", "control/store", "control/tables", "control/tracking", "control/usererr",
		"api", "conntrack", "datapath", "internal/buildinfo", "openflow", "openflow/ofp", "openflow/ofproto",
	},
	"control/engines": {
		"control/change", "control/ports", "control/pipeline", "control/macs", "control/observe", "control/store", "control/counters", "control/underlay", "control/watchdog", "control/workers", "control/loop",
		"conntrack", "datapath", "engine", "internal/cpu", "internal/buildinfo",
	},
	"control/ports": {
		"control/bond", "control/change", "control/flowexport", "control/lacp", "control/pipeline", "control/statistics", "control/store", "control/underlay", "control/watchdog", "control/workers", "control/limits", "control/loop", "control/usererr",
		"afpacket", "api", "bfd", "datapath", "engine", "offload", "openflow", "openflow/fdb", "openflow/xlate", "port", "tap", "tunnel", "vhost", "xsk", "internal/privilege",
	},
	"control/tracking": {"control/change", "control/workers", "control/limits", "control/usererr", "api", "conntrack", "datapath", "internal/clock"},
	"control/pipeline": {
		"control/change", "control/store", "control/counters", "control/megaflows", "control/underlay", "control/workers", "control/lease", "control/limits", "control/loop", "control/usererr",
		"datapath", "flowtable", "offload", "openflow", "openflow/fdb", "openflow/ofproto", "openflow/xlate", "packet", "port", "tunnel", "internal/clock", "internal/shm",
	},
	"control/macs":       {"control/change", "control/pipeline", "control/loop", "api", "internal/clock", "openflow", "openflow/fdb"},
	"control/statistics": {"control/counters", "control/pipeline", "control/workers", "control/limits", "api", "conntrack", "datapath", "internal/shm", "packet"},
	"control/observe":    {"control/limits", "control/usererr", "internal/clock", "api", "conntrack", "datapath", "flowtable", "openflow", "openflow/ofproto", "openflow/xlate", "packet", "internal/shm"},
	"control/counters":   {"control/underlay", "control/workers", "datapath", "flowtable", "internal/shm", "packet", "port"},
	"control/underlay":   {"control/loop", "bfd", "packet", "tunnel", "datapath", "internal/clock", "internal/netspace"},
	"control/store":      {"control/change", "control/usererr", "conntrack", "internal/clock", "internal/safepath"},
	"control/access":     {"control/limits", "control/usererr", "api", "internal/safepath", "internal/privilege"},
	"control/agent":      {"central/wire", "control/loop", "internal/atomicfile"},
	"control/central":    {"control/change", "control/agent", "control/lease", "control/store", "control/ports", "control/pipeline", "control/loop", "control/usererr", "central/client", "central/pki", "api", "internal/buildinfo", "openflow/xlate", "openflow/fdb"},
	"control/limits":     {"api", "internal/share"},
	"control/lease":      {"control/limits", "packet", "port"},
	"control/megaflows":  {"control/limits", "flowtable", "openflow", "openflow/fdb", "openflow/ofproto", "openflow/xlate", "internal/share"},
	"control/ofconn":     {"control/limits", "internal/clock", "internal/cpu", "openflow", "openflow/ofp", "openflow/ofproto", "port"},
	"control/tables": {
		"control/change", "control/megaflows", "control/pipeline", "control/usererr", "control/workers", "api", "datapath", "internal/clock", "openflow", "openflow/ofproto", "packet",
	},
	"control/unixctl":                   {"control/access", "control/limits"},
	"control/ovsdb":                     {"control/limits", "control/loop", "control/usererr", "api", "openflow/fdb", "vhost"},
	"control/bond":                      {},
	"control/flowexport/flowexporttest": {},
	"control/flowexport":                {"control/limits", "api", "datapath", "flowtable", "packet"},
	"control/lacp":                      {},
	"control/change":                    {},
	"control/change/changetest":         {"control/change"},
	"control/watchdog":                  {"datapath", "engine", "internal/procstat"},
	"control/workers":                   {"conntrack", "datapath", "engine", "internal/shm", "packet"},
	"control/engines/enginetest":        {"control/workers/workertest", "engine", "internal/buildinfo"},
	"control/pipeline/pipelinetest": {
		"control/change/changetest", "control/change", "control/counters", "control/limits", "control/macs", "control/pipeline", "control/store", "control/underlay", "control/workers", "control/workers/workertest",
		"datapath", "engine", "flowtable", "internal/waitfor", "openflow", "openflow/ofproto", "openflow/xlate",
	},
	"control/workers/workertest": {"conntrack", "datapath", "flowtable", "packet", "internal/clock", "internal/shm"},
	"control/loop":               {},
	"control/usererr":            {},
}

// controlOrder lists control and the packages below it. A package may import only packages that come
// later in the list.
var controlOrder = []string{
	"control",
	"control/rest", "control/appctl", "control/bridges", "control/unixctl", "control/access", "control/ofconn", "control/ovsdb", // requests
	"control/central",
	"control/agent",
	"control/engines", "control/engines/enginetest",
	"control/ports",
	"control/observe", "control/tables", "control/tracking", "control/statistics",
	"control/pipeline/pipelinetest", "control/macs", "control/pipeline",
	"control/change/changetest", "control/counters", "control/megaflows", "control/underlay", "control/store",
	"control/change",
	"control/flowexport", "control/flowexport/flowexporttest", "control/watchdog", "control/workers", "control/lease", "control/limits", "control/workers/workertest",
	"control/bond", "control/lacp", "control/loop", "control/usererr",
}

// A package of control imports only packages that come later in controlOrder.
func TestControlImportsPointDown(t *testing.T) {
	for dir, list := range controlMayImport {
		from := slices.Index(controlOrder, dir)
		if from < 0 {
			t.Errorf("controlOrder lacks %s", dir)
		}
		for _, target := range list {
			if to := slices.Index(controlOrder, target); strings.HasPrefix(target, "control") && to <= from {
				t.Errorf("%s may import %s, which stands above it in controlOrder", dir, target)
			}
		}
	}
	for _, dir := range controlOrder {
		if controlMayImport[dir] == nil {
			t.Errorf("controlOrder has %s, which has no row in controlMayImport", dir)
		}
	}
}

func TestControlHasNoStaleRow(t *testing.T) {
	used := map[string]map[string]bool{}
	for _, f := range files(t) {
		if f.test || controlMayImport[f.dir] == nil {
			continue
		}
		if used[f.dir] == nil {
			used[f.dir] = map[string]bool{}
		}
		for _, path := range f.imports {
			if target, own := strings.CutPrefix(path, module); own {
				used[f.dir][target] = true
			}
		}
	}
	for dir, list := range controlMayImport {
		if used[dir] == nil {
			t.Errorf("controlMayImport has a row for %s, which has no files", dir)
		}
		for _, target := range list {
			if !used[dir][target] {
				t.Errorf("%s may import %s and does not: remove it from its row", dir, target)
			}
			if slices.Contains(controlMayImport[target], dir) {
				t.Errorf("%s and %s may import each other", dir, target)
			}
		}
	}
}
