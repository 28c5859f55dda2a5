// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft/internal/netspace"
)

// Config describes a tap for Create.
type Config struct {
	// Dev is the device's name, at most 15 bytes.
	Dev string
	// Netns is the device's network namespace: a name as in `ip netns`, or a path;
	// "": the namespace of this process.
	Netns string
	// MAC is the address of the kernel's end of the tap; nil: the kernel chooses it, or it stays as it
	// is.
	MAC net.HardwareAddr
	// MTU is the device's MTU in bytes; 0: the kernel's default, or unchanged on an existing device.
	MTU int
	// Queues is the number of queues; 0 means 1.
	Queues int
	// Offloads allows unfinished checksums and large frames in both directions, as
	// far as the kernel supports them.
	Offloads bool
}

// Tap is the handle with which the control process sets up a tap device. The control process owns it. Only
// one goroutine may use it at a time.
type Tap struct {
	spec    spec
	netns   string // namespace as configured, for display
	created bool   // false: the device existed before
	fds     []int
	// counts is the descriptor of the map with the counts of frames; -1: none. uncounted is the reason
	// why there is none (count.go).
	counts    int
	uncounted string
}

// Create makes the tap, or attaches to a persistent tap of the same name. It applies
// the configuration and brings the link up. It assigns no IP addresses. An error is one
// line that names the wrong setting.
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
	h, err := netspace.Route(ns)
	if err != nil {
		return nil, cfg.fail("netlink", err)
	}
	defer h.Close()

	existing, err := findExisting(h, cfg)
	if err != nil {
		return nil, err
	}
	t := &Tap{netns: cfg.Netns, created: existing == nil, counts: -1, spec: spec{Dev: cfg.Dev, Queues: cfg.Queues}}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if cfg.Queues > 1 || existing != nil && existing.Flags&netlink.TUNTAP_MULTI_QUEUE != 0 {
		flags |= unix.IFF_MULTI_QUEUE
	}
	if t.spec.Vnet = cfg.Offloads; cfg.Offloads {
		flags |= unix.IFF_VNET_HDR
	}
	if err := t.attach(ns, h, cfg, flags); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// attach opens the queues of the device in the namespace ns, and configures the device. After an
// error, the caller closes t, which has the opened queues.
func (t *Tap) attach(ns netns.NsHandle, h *netlink.Handle, cfg Config, flags uint16) error {
	// The device belongs to the namespace of the thread that opens /dev/net/tun.
	err := within(ns, func() error {
		for range cfg.Queues {
			fd, err := attach(cfg, flags)
			if err != nil {
				return err
			}
			t.fds = append(t.fds, fd)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if cfg.Offloads {
		t.spec.Takes, err = setOffloads(t.fds[0])
	} else { // an earlier user of a persistent tap may have left offloads on
		err = unix.IoctlSetInt(t.fds[0], unix.TUNSETOFFLOAD, 0)
	}
	if err != nil {
		return cfg.fail("offloads", err)
	}
	if t.spec.MTU, err = configure(h, cfg); err != nil {
		return err
	}
	if cfg.Offloads && t.created {
		limitLarge(h, cfg.Dev, t.spec.MTU)
	}
	return nil
}

func (c Config) fail(step string, err error) error {
	return fmt.Errorf("tap %s: %s: %w", c.Dev, step, err)
}

// check returns an error for an invalid setting. Its texts are clearer than the kernel's errors.
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

// within runs f on a thread in the network namespace ns. If the thread cannot return to its own
// namespace afterwards, it ends with its goroutine.
func within(ns netns.NsHandle, f func() error) error {
	if netspace.Here(ns) {
		return f()
	}
	done := make(chan error, 1)
	go func() { done <- enter(ns, f) }() // enter closes every descriptor that it opens
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

func explainPermission(step string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s: missing privilege: a tap needs CAP_NET_ADMIN, and CAP_SYS_ADMIN in another namespace", step)
	}
	return fmt.Errorf("%s: %w", step, err)
}

// findExisting returns the existing tap with the configured name; nil: there is no device of this
// name. A device of another kind is an error.
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
		return nil, fmt.Errorf("tap %s: the device exists with one queue; %d queues need a device made with multi_queue", cfg.Dev, cfg.Queues)
	}
	return tuntap, nil
}

// attach opens one queue of the tap device, which it makes if necessary.
func attach(cfg Config, flags uint16) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return -1, fmt.Errorf("tap %s: no /dev/net/tun: the kernel's tun module is not loaded", cfg.Dev)
	}
	if err != nil { // names no capability, because on most systems every user may open the file
		return -1, fmt.Errorf("tap %s: open /dev/net/tun: %w", cfg.Dev, err)
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

// configure sets MAC and MTU as far as they are configured, brings the link up, and returns the MTU in
// bytes.
func configure(h *netlink.Handle, cfg Config) (int, error) {
	link, err := h.LinkByName(cfg.Dev)
	if err != nil {
		return 0, cfg.fail("look up", err)
	}
	mtu := link.Attrs().MTU
	if cfg.MTU == 0 && mtu > MaxMTU {
		return 0, fmt.Errorf("tap %s: the device has MTU %d, at most %d is possible", cfg.Dev, mtu, MaxMTU)
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

// Spec returns the specification for Open in JSON. Open also needs duplicates of FDs.
func (t *Tap) Spec() ([]byte, error) { return json.Marshal(t.spec) }

// FDs returns the descriptors for Open: one for each queue, then that of the counts of frames if there
// are any. The tap owns them: pass duplicates to Open.
func (t *Tap) FDs() []int {
	if t.counts < 0 {
		return t.fds
	}
	return append(slices.Clone(t.fds), t.counts)
}

// MTU returns the device's MTU at creation or from the last SetMTU, in bytes without the Ethernet header.
func (t *Tap) MTU() int { return t.spec.MTU }

// SetMTU changes the device's MTU. Afterwards the engine process must open the device again, with the new
// Spec.
func (t *Tap) SetMTU(mtu int) error {
	if mtu < minMTU || mtu > MaxMTU {
		return fmt.Errorf("tap %s: MTU %d is not in %d to %d", t.spec.Dev, mtu, minMTU, MaxMTU)
	}
	err := t.withLink(func(h *netlink.Handle, link netlink.Link) error {
		if err := h.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("tap %s: set MTU %d: %w", link.Attrs().Name, mtu, err)
		}
		if t.spec.Vnet && t.created {
			limitLarge(h, link.Attrs().Name, mtu)
		}
		return nil
	})
	if err == nil {
		t.spec.MTU = mtu
	}
	return err
}

// Close closes the descriptors of this process. A tap that is not persistent disappears when every process
// has closed its descriptors.
func (t *Tap) Close() {
	for _, fd := range t.fds {
		unix.Close(fd)
	}
	t.fds = nil
	if t.counts >= 0 {
		unix.Close(t.counts)
		t.counts, t.spec.Counted = -1, false
	}
}
