// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"weft/api"
	"weft/tunnel"
)

const (
	// patience is how long the plugin repeats a request while weftd does not answer. It then fails with
	// code 11, after which the runtime repeats the operation.
	patience = 3 * time.Second
	// busyPatience is how long the plugin repeats a request to which weftd answers that it is busy. On
	// a large host a hundred pods may start at once. To undo and repeat each ADD would be more work.
	busyPatience = time.Minute
	pause        = 100 * time.Millisecond
	// requestLimit limits the time of one request. In weftd, changes for different pods wait for each
	// other.
	requestLimit = time.Minute
)

// weftSwitch sends requests to weftd for one bridge.
type weftSwitch struct {
	api    *api.Client
	bridge string // "": the first one
}

// parseAndConnect reads the configuration of an operation and connects to its weftd.
func parseAndConnect(args *skel.CmdArgs) (*config, *weftSwitch, error) {
	c, err := parse(args.StdinData)
	if err != nil {
		return nil, nil, err
	}
	s, err := c.connect()
	return c, s, err
}

func (c *config) connect() (*weftSwitch, error) {
	client, err := api.NewClient(c.Socket)
	if err != nil {
		return nil, failure(types.ErrInvalidNetworkConfig, "network %s: %v", c.Name, err)
	}
	client.Timeout = requestLimit
	return &weftSwitch{api: client, bridge: c.Bridge}, nil
}

// repeat calls request until weftd serves it. After the first failure it goes on for at most patience,
// or busyPatience if weftd is busy. All requests of the plugin may be repeated without harm.
func repeat(request func() error) error {
	var failed time.Time
	for {
		err := request()
		var refused *api.Refused
		if err == nil || errors.As(err, &refused) && !refused.Unavailable {
			return err
		}
		limit := patience
		if refused != nil {
			limit = busyPatience
		}
		now := time.Now()
		if failed.IsZero() {
			failed = now
		}
		if now.Sub(failed)+pause > limit {
			return err
		}
		time.Sleep(pause)
	}
}

// addPort adds the port and waits until its state is up.
func (s *weftSwitch) addPort(name string, options []string) error {
	var port api.Port
	err := repeat(func() (err error) {
		port, err = s.api.EnsurePort(api.AddPort{Name: name, Options: options, MayExist: true})
		return err
	})
	if err != nil {
		return ofWeftd("port "+name, err)
	}
	for end := time.Now().Add(patience); port.State != "up"; {
		time.Sleep(pause)
		if ports, err := s.api.Ports(name); err == nil && len(ports) == 1 {
			port = ports[0]
		}
		if port.State != "up" && time.Now().After(end) {
			return failure(types.ErrTryAgainLater, "port %s: state %s: %s", name, port.State, port.Detail)
		}
	}
	return nil
}

// deletePort deletes a port of weftd. It does nothing if there is no such port.
func (s *weftSwitch) deletePort(name string) error {
	err := repeat(func() error { return s.api.DelPortIfExists(name) })
	if err != nil {
		return ofWeftd("port "+name, err)
	}
	return nil
}

// ports returns the ports whose names begin with prefix.
func (s *weftSwitch) ports(prefix string) ([]api.Port, error) {
	var ports []api.Port
	err := repeat(func() (err error) { ports, err = s.api.Ports(""); return err })
	if err != nil {
		return nil, ofWeftd("the list of ports", err)
	}
	return slices.DeleteFunc(ports, func(p api.Port) bool {
		return p.Type != "device" || !strings.HasPrefix(p.Name, prefix)
	}), nil
}

// mtu returns the largest MTU, up to 1500, with which no tunnel of the bridge fragments packets. It
// ignores tunnels whose path has no known MTU yet.
func (s *weftSwitch) mtu() (int, error) {
	const ethernet = 1500
	var ports []api.Port
	err := repeat(func() (err error) { ports, err = s.api.On(s.bridge).Ports(""); return err })
	if err != nil {
		return 0, ofWeftd("the MTU of the bridge", err)
	}
	mtu := ethernet
	for _, p := range ports {
		for _, remote := range p.Remotes {
			if to, err := netip.ParseAddr(remote.Address); err == nil && remote.MTU > 0 {
				mtu = min(mtu, remote.MTU-tunnel.Overhead(to))
			}
		}
	}
	return max(mtu, leastMTU), nil
}
