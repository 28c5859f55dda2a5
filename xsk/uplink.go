// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"weft/internal/shm"
)

// Uplink is the handle with which the control process sets up an uplink: a NIC with AF_XDP sockets. Only one
// goroutine may use it at a time.
type Uplink struct {
	spec         spec
	ifindex      int
	driver       string
	deviceQueues int // number of the device's receive queues
	mode         string
	refused      []Refusal
	settings     []setting // old values of changed device settings
	steered      bool      // traffic goes only to the served queues, see Config.Steer
	busy         int       // number of binds that failed with EBUSY during Setup

	region    *shm.Region
	sockets   []int // sockets of the queues; index: queue
	endpoints *ebpf.Map
	sockmap   *ebpf.Map
	link      link.Link
}

// Spec returns the specification of the uplink in JSON. The engine process passes it to Open, with duplicates
// of FDs.
func (u *Uplink) Spec() ([]byte, error) { return json.Marshal(u.spec) }

// FDs returns the descriptors for Open: the shared memory, then a socket for each queue. The uplink
// owns them: pass duplicates to Open.
func (u *Uplink) FDs() []int { return append([]int{u.region.FD()}, u.sockets...) }

// MTU returns the device's MTU at Setup or from the last SetMTU, in bytes without the Ethernet header.
func (u *Uplink) MTU() int { return u.spec.MTU }

// Index returns the device's ifindex.
func (u *Uplink) Index() int { return u.ifindex }

// SetEndpoints sets the tunnel endpoints whose datagrams the XDP program redirects: local addresses
// with UDP ports, or with port 0 for GRE. It skips unspecified addresses. After an error the map may
// have a mixture of old and new endpoints.
func (u *Uplink) SetEndpoints(endpoints []netip.AddrPort) error {
	want := make(map[endpointKey]bool)
	for _, e := range endpoints {
		switch {
		case !e.Addr().IsValid() || e.Addr().IsUnspecified():
		default:
			for _, k := range makeEndpointKeys(e) {
				want[k] = true
			}
		}
	}
	if len(want) > maxEndpoints {
		return fmt.Errorf("af_xdp on %s: %d endpoints: the limit is %d", u.spec.Dev, len(want), maxEndpoints)
	}
	have, err := u.currentEndpoints()
	if err != nil {
		return err
	}
	// If the map has no room for old and new endpoints together, the old ones are
	// deleted first.
	stale := func() error {
		for k := range have {
			if !want[k] {
				if err := u.endpoints.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
					return fmt.Errorf("af_xdp on %s: endpoint %v: %w", u.spec.Dev, k, err)
				}
			}
		}
		return nil
	}
	if len(have)+len(want) > maxEndpoints {
		if err := stale(); err != nil {
			return err
		}
	}
	for k := range want {
		if err := u.endpoints.Put(k, uint32(1)); err != nil {
			return fmt.Errorf("af_xdp on %s: endpoint %v: %w", u.spec.Dev, k, err)
		}
	}
	return stale()
}

func (u *Uplink) currentEndpoints() (map[endpointKey]bool, error) {
	have := make(map[endpointKey]bool)
	var k endpointKey
	var v uint32
	it := u.endpoints.Iterate()
	for it.Next(&k, &v) {
		have[k] = true
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("af_xdp on %s: endpoints: %w", u.spec.Dev, err)
	}
	return have, nil
}

// Close detaches the XDP program, then closes the descriptors of this process, because some drivers hang in
// the other order. It also restores the device settings. The engine process should close its descriptors
// before.
func (u *Uplink) Close() {
	u.detach()
	u.closeSockets()
	u.restoreSettings()
}

// Release closes the descriptors of this process. It is for a control process that ends while the engine
// process continues. The XDP program stays attached.
func (u *Uplink) Release() {
	u.closeProgram()
	u.closeSockets()
}

// snapshot is the state of an uplink in JSON for the next control process.
type snapshot struct {
	Spec         spec      `json:"spec"`
	Index        int       `json:"ifindex"`
	Driver       string    `json:"driver"`
	DeviceQueues int       `json:"device_queues"`
	Mode         string    `json:"mode"`
	Refused      []Refusal `json:"refused,omitempty"`
	Settings     []setting `json:"settings,omitempty"`
	Steered      bool      `json:"steered,omitempty"`
}

// Snapshot returns the state and the descriptors of the uplink. From them, Restore makes the same uplink in
// the next control process. The descriptors are those of FDs, then those of the XDP program's two maps and of
// its link. The uplink still owns them.
func (u *Uplink) Snapshot() (blob []byte, fds []int, err error) {
	fd, ok := u.link.(interface{ FD() int })
	if !ok {
		return nil, nil, fmt.Errorf("af_xdp on %s: the link has no descriptor", u.spec.Dev)
	}
	blob, err = json.Marshal(snapshot{
		Spec: u.spec, Index: u.ifindex, Driver: u.driver, DeviceQueues: u.deviceQueues, Mode: u.mode, Refused: u.refused,
		Settings: u.settings, Steered: u.steered,
	})
	return blob, append(u.FDs(), u.endpoints.FD(), u.sockmap.FD(), fd.FD()), err
}

// Restore makes an uplink from the Snapshot of another process. It does not change the device. It owns
// the descriptors, even if it fails.
func Restore(blob []byte, fds []int) (*Uplink, error) {
	u := &Uplink{}
	s, err := parseSnapshot(blob, fds)
	if err != nil {
		closeAll(fds)
		return nil, fmt.Errorf("af_xdp: snapshot: %w", err)
	}
	u.spec, u.ifindex, u.driver, u.deviceQueues = s.Spec, s.Index, s.Driver, s.DeviceQueues
	u.mode, u.refused, u.settings, u.steered = s.Mode, s.Refused, s.Settings, s.Steered
	n := 1 + s.Spec.Queues
	u.sockets = append(u.sockets, fds[1:n]...)
	// Each constructor owns the descriptors that it gets, even if it fails. So all four run before the first
	// error is checked.
	var errs [4]error
	u.region, errs[0] = shm.Open(fds[0])
	u.endpoints, errs[1] = ebpf.NewMapFromFD(fds[n])
	u.sockmap, errs[2] = ebpf.NewMapFromFD(fds[n+1])
	u.link, errs[3] = link.NewFromFD(fds[n+2])
	if err := errors.Join(errs[:]...); err != nil {
		u.Release()
		return nil, fmt.Errorf("af_xdp on %s: take over: %w", s.Spec.Dev, errnoOf(err))
	}
	return u, nil
}

func parseSnapshot(blob []byte, fds []int) (snapshot, error) {
	var s snapshot
	if err := json.Unmarshal(blob, &s); err != nil {
		return s, err
	}
	if s.Spec.Queues < 1 || len(fds) != 1+s.Spec.Queues+3 {
		return s, fmt.Errorf("%d descriptors do not fit %d queues", len(fds), s.Spec.Queues)
	}
	return s, s.Spec.check(1 + s.Spec.Queues)
}
