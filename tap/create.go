package tap

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Config says which tap is wanted.
type Config struct {
	// Dev is the device's name: up to 15 bytes.
	Dev string
	// Netns is the network namespace it is in: a name as in `ip netns`, or a
	// path; empty: the process's own.
	Netns string
	// MAC is the address of the kernel's end; nil: the kernel chooses, or an
	// existing device keeps its own.
	MAC net.HardwareAddr
	// MTU in bytes; 0: the kernel's 1500, or what an existing device has.
	MTU int
	// Queues is the number of queues; 0: one.
	Queues int
	// Offloads has checksums and segmentation left to whoever can do without, in
	// both directions.
	Offloads bool
}

// Tap is a tap as control holds it. Control owns; one goroutine at a time.
type Tap struct {
	spec    spec
	netns   string // as configured, for people
	created bool
	fds     []int
}

// Create makes the tap, or attaches to a persistent one of that name, sets what
// the configuration asks for and brings the link up: a port that was added is
// meant to be used, and a tap that is down refuses every frame. Addresses are
// left to the user. Errors are one line that names what is wrong.
func Create(cfg Config) (*Tap, error) {
	if cfg.Queues == 0 {
		cfg.Queues = 1
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	ns, err := openNetns(cfg.Netns)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, cfg.fail("netlink", err)
	}
	defer h.Close()

	existing, err := findExisting(h, cfg)
	if err != nil {
		return nil, err
	}
	t := &Tap{netns: cfg.Netns, created: existing == nil, spec: spec{Dev: cfg.Dev, Queues: cfg.Queues}}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if cfg.Queues > 1 || existing != nil && existing.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	if t.spec.Vnet = cfg.Offloads; cfg.Offloads {
		flags |= unix.IFF_VNET_HDR
	}
	// What opens /dev/net/tun has the device made in its thread's namespace.
	err = within(ns, func() error {
		for range cfg.Queues {
			fd, err := attach(cfg, flags)
			if err != nil {
				return err
			}
			t.fds = append(t.fds, fd)
		}
		return nil
	})
	if err == nil && cfg.Offloads {
		if t.spec.Takes, err = setOffloads(t.fds[0]); err != nil {
			err = cfg.fail("offloads", err)
		}
	} else if err == nil { // a persistent tap may have had some
		if err = unix.IoctlSetInt(t.fds[0], unix.TUNSETOFFLOAD, 0); err != nil {
			err = cfg.fail("offloads", err)
		}
	}
	if err == nil {
		t.spec.MTU, err = configure(h, cfg)
	}
	if err == nil && cfg.Offloads && t.created {
		limitLarge(h, cfg.Dev, t.spec.MTU)
	}
	if err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

func (c Config) fail(what string, err error) error {
	return fmt.Errorf("tap %s: %s: %w", c.Dev, what, err)
}

// check refuses what the kernel would refuse with fewer words.
func (c Config) check() error {
	switch {
	case c.Dev == "":
		return errors.New("tap: a device name is missing")
	case len(c.Dev) >= unix.IFNAMSIZ:
		return fmt.Errorf("tap %s: the device name has %d bytes, at most %d are possible", c.Dev, len(c.Dev), unix.IFNAMSIZ-1)
	case c.Dev == "." || c.Dev == ".." || strings.ContainsAny(c.Dev, "/: \t\n\v\f\r%"):
		return fmt.Errorf("tap %q: not a device name: no slash, colon, percent sign or space is possible", c.Dev)
	case c.MTU != 0 && (c.MTU < minMTU || c.MTU > MaxMTU):
		return fmt.Errorf("tap %s: MTU %d is not in %d to %d", c.Dev, c.MTU, minMTU, MaxMTU)
	case c.Queues < 1 || c.Queues > MaxQueues:
		return fmt.Errorf("tap %s: %d queues: expected 1 to %d", c.Dev, c.Queues, MaxQueues)
	case c.MAC != nil && (len(c.MAC) != 6 || c.MAC[0]&1 != 0):
		return fmt.Errorf("tap %s: %s is not the MAC address of a device: expected six bytes, unicast", c.Dev, c.MAC)
	}
	return nil
}

func openNetns(name string) (netns.NsHandle, error) {
	var ns netns.NsHandle
	var err error
	switch {
	case name == "":
		ns, err = netns.Get()
	case strings.Contains(name, "/"):
		ns, err = netns.GetFromPath(name)
	default:
		ns, err = netns.GetFromName(name)
	}
	if errors.Is(err, os.ErrNotExist) {
		return ns, fmt.Errorf("no network namespace %q", name)
	}
	if err != nil {
		return ns, fmt.Errorf("network namespace %q: %w", name, err)
	}
	return ns, nil
}

// within runs f on a thread that is in ns. A thread that cannot be brought back
// stays locked, and ends with its goroutine.
func within(ns netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- enter(ns, f) }() // with all closed that it has opened
	return <-done
}

func enter(ns netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	old, err := netns.Get()
	if err != nil {
		return fmt.Errorf("own network namespace: %w", err)
	}
	defer old.Close()
	if err := netns.Set(ns); err != nil {
		return explainPermission("enter the network namespace", err)
	}
	err = f()
	if netns.Set(old) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

func explainPermission(what string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s: missing privilege: CAP_NET_ADMIN (and CAP_SYS_ADMIN for another namespace) is needed", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// findExisting returns the tap of that name, nil if there is none.
func findExisting(h *netlink.Handle, cfg Config) (*netlink.Tuntap, error) {
	link, err := h.LinkByName(cfg.Dev)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, cfg.fail("look up", err)
	}
	tuntap, ok := link.(*netlink.Tuntap)
	switch {
	case !ok:
		return nil, fmt.Errorf("tap %s: the device exists and is a %s, not a tap", cfg.Dev, link.Type())
	case tuntap.Mode != netlink.TUNTAP_MODE_TAP:
		return nil, fmt.Errorf("tap %s: the device exists and is a tun, not a tap", cfg.Dev)
	case cfg.Queues > 1 && tuntap.Flags&netlink.TUNTAP_MULTI_QUEUE == 0:
		return nil, fmt.Errorf("tap %s: the device exists with one queue; %d asked for need one made with multi_queue", cfg.Dev, cfg.Queues)
	}
	return tuntap, nil
}

// attach opens one queue of the device, which is made if it does not exist.
func attach(cfg Config, flags uint16) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return -1, fmt.Errorf("tap %s: no /dev/net/tun: the kernel's tun module is not loaded", cfg.Dev)
	}
	if err != nil {
		return -1, fmt.Errorf("tap %s: %w", cfg.Dev, explainPermission("open /dev/net/tun", err))
	}
	req, err := unix.NewIfreq(cfg.Dev)
	if err != nil {
		unix.Close(fd)
		return -1, cfg.fail("name", err)
	}
	req.SetUint16(flags)
	err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	if err == nil {
		return fd, nil
	}
	unix.Close(fd)
	switch {
	case errors.Is(err, unix.EBUSY):
		return -1, fmt.Errorf("tap %s: the device is in use by another process", cfg.Dev)
	case errors.Is(err, unix.EINVAL):
		return -1, fmt.Errorf("tap %s: the device exists and is of another kind, or has another number of queues", cfg.Dev)
	case errors.Is(err, unix.E2BIG):
		return -1, fmt.Errorf("tap %s: the kernel allows no further queue", cfg.Dev)
	}
	return -1, fmt.Errorf("tap %s: %w", cfg.Dev, explainPermission("create or attach", err))
}

// configure sets MAC and MTU where asked for, brings the link up, and returns
// the MTU in force.
func configure(h *netlink.Handle, cfg Config) (int, error) {
	link, err := h.LinkByName(cfg.Dev)
	if err != nil {
		return 0, cfg.fail("look up", err)
	}
	mtu := link.Attrs().MTU
	if cfg.MTU == 0 && mtu > MaxMTU {
		return 0, fmt.Errorf("tap %s: the device has MTU %d, at most %d are possible", cfg.Dev, mtu, MaxMTU)
	}
	if cfg.MTU != 0 {
		mtu = cfg.MTU
		if err := h.LinkSetMTU(link, mtu); err != nil {
			return 0, cfg.fail(fmt.Sprintf("set MTU %d", mtu), err)
		}
	}
	if cfg.MAC != nil {
		if err := h.LinkSetHardwareAddr(link, cfg.MAC); err != nil {
			return 0, cfg.fail("set MAC address "+cfg.MAC.String(), err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return 0, cfg.fail("bring up", err)
	}
	return mtu, nil
}

// Spec is what Open needs besides the descriptors.
func (t *Tap) Spec() ([]byte, error) { return json.Marshal(t.spec) }

// FDs are the descriptors Open needs, one a queue. The tap owns them: send
// duplicates.
func (t *Tap) FDs() []int { return t.fds }

// MTU is the device's MTU as it was set up, in bytes without Ethernet header.
func (t *Tap) MTU() int { return t.spec.MTU }

// Close closes control's descriptors. A tap that is not persistent goes with
// the last one of any process.
func (t *Tap) Close() {
	for _, fd := range t.fds {
		unix.Close(fd)
	}
	t.fds = nil
}
