package control

import (
	"fmt"
	"log/slog"
	"os"
	"slices"

	"weft/control/access"
	"weft/control/engines"
	"weft/control/workers"
	"weft/datapath"
	"weft/internal/cpu"
)

// Config is what the daemon is started with.
type Config struct {
	Socket      string // API, a path
	SocketGroup string // members may use all of the API; "": none
	// SocketReadGroup names the group whose members may look and not change; "": none.
	SocketReadGroup string
	StateDir        string
	Workers         int   // 0: as many as Cores, or 1
	Cores           []int // one worker each; nil: the last ones allowed
	// VsockPort makes the API listen on vsock too; 0: not.
	VsockPort uint32
	// VsockAllow gives roles to CIDs, before access.DefaultCIDs.
	VsockAllow map[uint32]access.Role
	Metrics    string // TCP address of the Prometheus listener; "": none
	// GuestMemoryGiB is what one guest may have mapped; 0: as the machine allows.
	GuestMemoryGiB int
	SpinUS         int    // how long a worker polls empty queues, µs; 0: DefaultSpinUS
	Exe            string // the binary with the engine in it; "": this one
	Log            *slog.Logger

	sizes    datapath.Sizes   // of the workers' memory; zero: the default
	launcher engines.Launcher // of engines; nil: processes
}

// DefaultSpinUS keeps a worker awake over the gaps of traffic that is not idle.
const DefaultSpinUS = 50

// complete fills defaults in and refuses what cannot be.
func (c *Config) complete() error {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.sizes == (datapath.Sizes{}) {
		c.sizes = datapath.DefaultSizes
	}
	if c.launcher == nil {
		c.launcher = engines.Processes{}
	}
	if c.SpinUS == 0 {
		c.SpinUS = DefaultSpinUS
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
	return c.chooseCores(allowed)
}

// chooseCores settles which cores are workers' ones.
func (c *Config) chooseCores(allowed []int) error {
	for _, core := range c.Cores {
		if !slices.Contains(allowed, core) {
			return inputf("cores: %d: this process may run on %v only", core, allowed)
		}
	}
	switch {
	case c.Workers < 0 || c.Workers > workers.Max:
		return inputf("workers: %d: expected a number from 1 to %d", c.Workers, workers.Max)
	case c.Workers != 0 && c.Cores != nil && c.Workers != len(c.Cores):
		return inputf("workers: %d: expected as many as there are cores in the list, %d", c.Workers, len(c.Cores))
	case c.Cores != nil:
		c.Workers = len(c.Cores)
		return nil
	}
	c.Workers = max(c.Workers, 1)
	if c.Workers > len(allowed) {
		return inputf("workers: %d: this process may run on %d cores only", c.Workers, len(allowed))
	}
	c.Cores = allowed[len(allowed)-c.Workers:]
	return nil
}
