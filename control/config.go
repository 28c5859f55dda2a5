// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"weft/control/access"
	"weft/control/bridges"
	"weft/control/engines"
	"weft/control/usererr"
	"weft/control/workers"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/cpu"
	"weft/internal/logs"
)

// Config is the configuration of the daemon, from the command line of weftd.
type Config struct {
	Name        string // the switch's name; "": none
	Socket      string // path of the API's unix socket
	SocketGroup string // name of the group whose members have role Write; "": no group
	// SocketReadGroup is the name of the group whose members have role Read; "": no
	// group.
	SocketReadGroup string
	StateDir        string
	Workers         int   // number of workers; 0: as many as Cores, or 1 without Cores
	Cores           []int // cores of the workers, one worker on each; nil: the last cores that the process may use
	// VsockPort is the vsock port of the API; 0: no vsock listener.
	VsockPort uint32
	// VsockAllow maps CIDs of vsock peers to roles. It overrides access.DefaultCIDs.
	VsockAllow map[uint32]access.Role
	Metrics    string // TCP address of the Prometheus listener; "": no listener
	// GuestMemoryGiB limits the memory that one guest may map, in GiB; 0: the default, which depends on
	// the machine's memory.
	GuestMemoryGiB int
	// Central has the addresses (HOST:PORT) of the weft-central servers that the switch follows; nil:
	// none.
	Central []string
	// CentralCerts is the directory with the host's certificate for connections to weft-central.
	CentralCerts string
	OpenFlow     bridges.OpenFlow
	// OVSDB is the address of the ovsdb-server that configures bridges, ports and controllers: unix:PATH,
	// tcp:HOST:PORT or ssl:HOST:PORT; "": none.
	OVSDB string
	// Megaflows limits the megaflows, and is a power of two. Connections limits the tracked connections.
	// 0 stands for flowtable.DefaultMegaflows or conntrack.DefaultConnections.
	Megaflows, Connections int

	SpinUS int    // time in microseconds for which a worker polls empty queues before it sleeps; 0: DefaultSpinUS
	Exe    string // path of the binary that contains the engine; "": this binary
	// Delayed is called if weftd waits at its start because no new engine process can start. reason is one
	// line. Until the start, the API's answers contain it. The engine of an earlier weftd may still
	// forward frames. nil: no call.
	Delayed     func(reason string)
	Log         *slog.Logger
	LogSettings *logs.Log // settings of Log, for the API; nil: settings without effect

	sizes    datapath.Sizes   // sizes of the memory shared with the workers; zero: the defaults
	launcher engines.Launcher // starts engines; nil: as processes
}

// DefaultSpinUS is the time in microseconds for which a worker polls empty queues by default. It keeps
// the worker awake between the frames of moderate traffic.
const DefaultSpinUS = 50

func (c *Config) complete() error {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.LogSettings == nil {
		_, c.LogSettings = logs.New(io.Discard)
	}
	if c.launcher == nil {
		c.launcher = engines.Processes{}
	}
	if c.SpinUS == 0 {
		c.SpinUS = DefaultSpinUS
	}
	switch {
	case c.OVSDB != "" && c.Name != "":
		return usererr.Errorf("name: %s: the database of ovsdb names the bridges; expected one of both", c.Name)
	case c.OVSDB != "" && len(c.Central) > 0:
		return usererr.Errorf("central: %s: the database of ovsdb rules the ports; expected one of both", c.Central[0])
	}
	if c.Exe == "" {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("own binary: %w", err)
		}
		c.Exe = exe
	}
	allowed, err := cpu.Allowed()
	if err != nil {
		return err
	}
	if err := c.chooseCores(allowed); err != nil {
		return err
	}
	if c.sizes == (datapath.Sizes{}) {
		if c.Megaflows == 0 {
			c.Megaflows = flowtable.DefaultMegaflows(machineMemory(), c.Workers)
		}
		c.sizes = datapath.DefaultSizes
		c.sizes.Cache = flowtable.SizesOf(c.Megaflows)
	}
	return nil
}

// machineMemory returns the machine's memory in bytes, or 0 if the kernel does not report it.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}

func (c *Config) chooseCores(allowed []int) error {
	for _, core := range c.Cores {
		if !slices.Contains(allowed, core) {
			return usererr.Errorf("cores: %d: this process may run on %v only", core, allowed)
		}
	}
	switch {
	case c.Workers < 0 || c.Workers > workers.Max:
		return usererr.Errorf("workers: %d: expected a number from 1 to %d", c.Workers, workers.Max)
	case c.Workers != 0 && c.Cores != nil && c.Workers != len(c.Cores):
		return usererr.Errorf("workers: %d: expected as many as there are cores in the list, %d", c.Workers, len(c.Cores))
	case c.Cores != nil:
		c.Workers = len(c.Cores)
		return nil
	}
	c.Workers = max(c.Workers, 1)
	if c.Workers > len(allowed) {
		return usererr.Errorf("workers: %d: this process may run on %d cores only", c.Workers, len(allowed))
	}
	c.Cores = allowed[len(allowed)-c.Workers:]
	return nil
}
