// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"encoding/json"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"weft/internal/netspace"
)

// Status is the state of a tap for the operator.
type Status struct {
	Dev     string `json:"dev"`
	Netns   string `json:"netns,omitempty"` // namespace as configured
	Queues  int    `json:"queues"`
	Created bool   `json:"created"` // false if the device existed before
	// Index, MAC, MTU and Up are the kernel's current values. If the kernel does not tell them, Error
	// is the reason, and MTU is the value of the specification.
	Index int    `json:"ifindex,omitempty"`
	MAC   string `json:"mac,omitempty"`
	MTU   int    `json:"mtu"`
	Up    bool   `json:"up"`
	Error string `json:"error,omitempty"`
}

// Status returns the state of the device. It asks the kernel for the current values.
func (t *Tap) Status() Status {
	s := Status{Dev: t.spec.Dev, Netns: t.netns, Queues: t.spec.Queues, Created: t.created, MTU: t.spec.MTU}
	link, err := t.link()
	if err != nil {
		s.Error = err.Error()
		return s
	}
	a := link.Attrs()
	s.Dev, s.Index, s.MAC, s.MTU = a.Name, a.Index, a.HardwareAddr.String(), a.MTU
	s.Up = a.RawFlags&unix.IFF_UP != 0
	return s
}

func (t *Tap) link() (link netlink.Link, err error) {
	err = t.withLink(func(_ *netlink.Handle, l netlink.Link) error { link = l; return nil })
	return link, err
}

// withLink calls fn with the tap's device and a netlink handle of the device's namespace. It finds the
// device by its descriptor, even if the device was renamed or moved to another namespace.
func (t *Tap) withLink(fn func(*netlink.Handle, netlink.Link) error) error {
	if len(t.fds) == 0 {
		return fmt.Errorf("closed")
	}
	req, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(t.fds[0], unix.TUNGETIFF, req); err != nil {
		return fmt.Errorf("the tap device was removed")
	}
	ns, err := unix.IoctlRetInt(t.fds[0], unix.TUNGETDEVNETNS)
	if err != nil {
		return fmt.Errorf("network namespace of the device: %w", err)
	}
	defer unix.Close(ns)
	h, err := netspace.Route(netns.NsHandle(ns))
	if err != nil {
		return fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(req.Name())
	if err != nil {
		return fmt.Errorf("%s: %w", req.Name(), err)
	}
	return fn(h, link)
}

// snapshot is the state of a tap in JSON for the next control process.
type snapshot struct {
	Spec    spec   `json:"spec"`
	Netns   string `json:"netns,omitempty"`
	Created bool   `json:"created"`
	// Uncounted is the reason why the kernel does not count the frames of the queues.
	Uncounted string `json:"uncounted,omitempty"`
}

// Snapshot returns the state and the descriptors of the tap. Restore makes the same tap from them in
// the next control process. The tap still owns the descriptors.
func (t *Tap) Snapshot() (blob []byte, fds []int, err error) {
	s := t.spec
	s.Counted = false // the next control process makes counts of its own for the next engine
	blob, err = json.Marshal(snapshot{Spec: s, Netns: t.netns, Created: t.created, Uncounted: t.uncounted})
	return blob, t.fds, err
}

// Restore makes a tap from the Snapshot of another process. It owns the descriptors, even if it fails.
func Restore(blob []byte, fds []int) (*Tap, error) {
	t := &Tap{fds: fds, counts: -1}
	var s snapshot
	err := json.Unmarshal(blob, &s)
	if err == nil && s.Spec.Queues != len(fds) {
		err = fmt.Errorf("%d descriptors for %d queues", len(fds), s.Spec.Queues)
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("tap: snapshot: %w", err)
	}
	t.spec, t.netns, t.created, t.uncounted = s.Spec, s.Netns, s.Created, s.Uncounted
	return t, nil
}
