// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"weft/control/counters"
	"weft/control/workers"
	"weft/engine"
)

// keepCounters is the key by which the engine process stores the counter region for the next control
// process.
const keepCounters = "counters"

// inheritance is the state that a running engine has kept for the next control process.
type inheritance struct {
	client Client         // nil: no engine runs
	memory *engine.Memory // nil: there is none, or it has another layout
	// table has only the connection table of the old engine, and is set only if memory is nil. It is nil
	// if there is no such table, or if its layout differs, too.
	table     *engine.Memory
	counters  *counters.Region
	ports     map[uint32]*engine.Kept // devices by port number
	attached  map[uint32]bool         // ports for which the engine forwards
	unchanged bool                    // the engine was started with the settings of this process
}

// keptCounters describes a counter region. The engine stores it as JSON, with the region, for the next
// control process.
type keptCounters struct {
	// Build identifies the binary of the control process that made the region. A control process of
	// another build replaces the engine.
	Build string `json:"build"`
	// Layout identifies the layout of the workers' memory. A control process with another layout does
	// not read that memory. "": the build had no such identifier.
	Layout string `json:"layout,omitempty"`
}

func (es *Engines) inherit() (*inheritance, error) {
	in := &inheritance{ports: map[uint32]*engine.Kept{}, attached: map[uint32]bool{}}
	client, err := es.launcher.Connect(es.dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return in, nil
	}
	if err != nil {
		return nil, err
	}
	in.client = client
	var kept []engine.Kept
	err = es.answered(client, func() (err error) {
		kept, err = client.Recall()
		return err
	})
	if err != nil {
		es.log.Warn("cannot recall the state that the running engine keeps, replacing it", "error", err)
		return in, nil
	}
	var start *engine.Kept
	var maker keptCounters
	extras := map[uint32]*engine.Kept{}        // further descriptors of devices by port number
	parts := map[uint32]map[int]*engine.Kept{} // further parts of devices by port number
	for i := range kept {
		k := &kept[i]
		switch {
		case k.Request.Op == engine.OpStart:
			start = k
		case k.Request.Op == engine.OpAttach:
			in.attached[k.Request.Attach.Port] = true
			k.CloseFDs()
		case k.Request.Key == keepCounters:
			maker = es.inheritCounters(in, k)
		default:
			inheritPort(in.ports, extras, parts, k)
		}
	}
	for number, k := range extras {
		if device := in.ports[number]; device != nil {
			device.FDs = append(device.FDs, k.FDs...)
		} else {
			k.CloseFDs()
		}
	}
	for number, list := range parts {
		if device := in.ports[number]; device != nil {
			device.Parts = list
			continue
		}
		for _, k := range list {
			k.CloseFDs()
		}
	}
	es.inheritMemory(in, start, maker)
	return in, nil
}

func (es *Engines) inheritCounters(inherited *inheritance, k *engine.Kept) (maker keptCounters) {
	if json.Unmarshal(k.Request.Blob, &maker) != nil || len(k.FDs) != 1 {
		k.CloseFDs()
		return keptCounters{}
	}
	c, err := counters.Open(k.FDs[0], es.start.Sizes.Cache.Megaflows)
	if err != nil {
		es.log.Warn("cannot use the counter region, statistics start at 0", "error", err)
		return keptCounters{}
	}
	inherited.counters = c
	return maker
}

// inheritPort adds k to one of three maps by port number. k is a request that the engine has stored for
// the next control process. The key of the request selects the map: extras for ports.ExtrasKey, parts for
// ports.PartKey, devices for other keys about a port. A request that is not about a port is discarded.
func inheritPort(devices, extras map[uint32]*engine.Kept, parts map[uint32]map[int]*engine.Kept, k *engine.Kept) {
	number, isPort := strings.CutPrefix(k.Request.Key, "port/")
	number, isExtras := strings.CutSuffix(number, "/extras")
	number, part, isPart := strings.Cut(number, "/parts/")
	n, err := strconv.ParseUint(number, 10, 32)
	switch {
	case !isPort || err != nil:
		k.CloseFDs()
	case isExtras:
		extras[uint32(n)] = k
	case isPart:
		i, err := strconv.Atoi(part)
		if err != nil {
			k.CloseFDs()
			return
		}
		if parts[uint32(n)] == nil {
			parts[uint32(n)] = map[int]*engine.Kept{}
		}
		parts[uint32(n)][i] = k
	default:
		devices[uint32(n)] = k
	}
}

func (es *Engines) inheritMemory(inherited *inheritance, start *engine.Kept, maker keptCounters) {
	if start == nil {
		return
	}
	s := start.Request.Start
	if k := s.OptionsKey; k[0]|k[1] != 0 { // zero: of a version without Geneve
		es.start.OptionsKey = s.OptionsKey
	}
	own := maker.Build == buildID()
	if inherited.counters == nil || !own && maker.Layout != workers.Layout() || !reflect.DeepEqual(s.Sizes, es.start.Sizes) {
		table, err := engine.OpenTable(*s, start.FDs)
		if err != nil {
			es.log.Warn("cannot take over the tracked connections", "error", err)
			return
		}
		inherited.table = table
		return
	}
	m, err := engine.OpenMemory(*s, start.FDs)
	if err != nil {
		es.log.Warn("cannot use the running engine's memory, replacing it", "error", err)
		return
	}
	inherited.memory = m
	inherited.unchanged = own && reflect.DeepEqual(*s, es.start)
	if !inherited.client.MayKill() {
		// The watchdog must be able to kill a hung engine.
		es.log.Info("another user runs the engine, replacing it", "pid", inherited.client.PID())
		inherited.unchanged = false
	}
	if inherited.client.Halted() {
		es.log.Info("the running engine was halted to be replaced, replacing it", "pid", inherited.client.PID())
		inherited.unchanged = false
	}
}

// old returns the memory that has the connection table of the running engine, or nil.
func (in *inheritance) old() *engine.Memory {
	if in.memory != nil {
		return in.memory
	}
	return in.table
}

// close unmaps the memory of the old engine.
func (in *inheritance) close() {
	if m := in.old(); m != nil {
		m.Close()
	}
}

// buildID returns the build ID in this binary, in hexadecimal, or "" if it has none.
var buildID = sync.OnceValue(readBuildID)

func readBuildID() string {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return ""
	}
	defer f.Close()
	section := f.Section(".note.go.buildid")
	if section == nil {
		return ""
	}
	note, err := section.Data()
	if err != nil {
		return ""
	}
	return hex.EncodeToString(note)
}
