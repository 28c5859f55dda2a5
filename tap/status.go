package tap

import (
	"encoding/json"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Status is what is to be seen of a tap.
type Status struct {
	Dev     string `json:"dev"`
	Netns   string `json:"netns,omitempty"` // as configured
	Queues  int    `json:"queues"`
	Created bool   `json:"created"` // false: attached to an existing device
	// The kernel's view of now; Error is set where it could not be asked.
	Index int    `json:"ifindex,omitempty"`
	MAC   string `json:"mac,omitempty"`
	MTU   int    `json:"mtu"`
	Up    bool   `json:"up"`
	Error string `json:"error,omitempty"`
}

// Status asks the kernel how the device is.
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

// link finds the device from its descriptor, wherever it was moved to and
// whatever its name has become.
func (t *Tap) link() (netlink.Link, error) {
	if len(t.fds) == 0 {
		return nil, fmt.Errorf("closed")
	}
	req, err := unix.NewIfreq("")
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlIfreq(t.fds[0], unix.TUNGETIFF, req); err != nil {
		return nil, fmt.Errorf("the tap device was removed")
	}
	ns, err := unix.IoctlRetInt(t.fds[0], unix.TUNGETDEVNETNS)
	if err != nil {
		return nil, fmt.Errorf("network namespace of the device: %w", err)
	}
	defer unix.Close(ns)
	h, err := netlink.NewHandleAt(netns.NsHandle(ns), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(req.Name())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", req.Name(), err)
	}
	return link, nil
}

// snapshot is what outlives the process that created the tap, in JSON.
type snapshot struct {
	Spec    spec   `json:"spec"`
	Netns   string `json:"netns,omitempty"`
	Created bool   `json:"created"`
}

// Snapshot returns what Restore needs in another process: a text, and the
// descriptors, which the tap goes on owning.
func (t *Tap) Snapshot() (blob []byte, fds []int, err error) {
	blob, err = json.Marshal(snapshot{Spec: t.spec, Netns: t.netns, Created: t.created})
	return blob, t.fds, err
}

// Restore takes a tap over from what Snapshot gave. It owns the descriptors,
// also when it fails.
func Restore(blob []byte, fds []int) (*Tap, error) {
	t := &Tap{fds: fds}
	var s snapshot
	err := json.Unmarshal(blob, &s)
	if err == nil && s.Spec.Queues != len(fds) {
		err = fmt.Errorf("%d descriptors for %d queues", len(fds), s.Spec.Queues)
	}
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("tap: snapshot: %w", err)
	}
	t.spec, t.netns, t.created = s.Spec, s.Netns, s.Created
	return t, nil
}
