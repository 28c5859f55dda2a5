// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// add handles the CNI operation ADD, which connects a pod. If the plugin is killed in between, the
// runtime calls DEL, which undoes the steps so far.
func add(args *skel.CmdArgs) (err error) {
	c, err := parse(args.StdinData)
	if err == nil {
		err = c.readArgs(args)
	}
	if err != nil {
		return err
	}
	p, err := openPod(args.Netns, args.IfName)
	if err != nil {
		return err
	}
	defer p.close()
	// This check comes before the first change. Otherwise a second ADD for the same pod could fail
	// later, and would then undo what the first ADD has made.
	if err := p.absent(); err != nil {
		return err
	}
	s, err := c.connect()
	if err != nil {
		return err
	}
	mtu := c.MTU
	if mtu == 0 {
		if mtu, err = s.mtu(); err != nil {
			return err
		}
	}
	return c.attach(args, p, s, mtu)
}

// attach gives a pod its interface, addresses and port. If a step fails, attach undoes the earlier
// steps.
func (c *config) attach(args *skel.CmdArgs, p *pod, s *weftSwitch, mtu int) (err error) {
	var undo []func() error
	defer func() {
		if err == nil {
			return
		}
		for i := len(undo) - 1; i >= 0; i-- {
			_ = undo[i]() // the first error matters, and DEL tries again
		}
	}()
	result, err := c.allocate(args)
	if err != nil {
		return err
	}
	undo = append(undo, func() error { return c.delegate(args, invoke.DelegateDel) })

	a := attachmentOf(c, args)
	if err := p.connect(a, c.mac, mtu); err != nil {
		return err
	}
	undo = append(undo, func() error { return removeLink(a) })
	host, err := raiseHost(a)
	if err != nil {
		return err
	}
	inside, err := p.link()
	if err != nil {
		return err
	}
	if err := p.address(inside, result.IPs); err != nil {
		return err
	}
	mac := inside.Attrs().HardwareAddr
	// A request to add the port may take effect although it fails. So the port is deleted in this case
	// too.
	undo = append(undo, func() error { return s.deletePort(a.port()) })
	if err := s.addPort(a.port(), c.portOptions(a, mac, result.IPs)); err != nil {
		return err
	}
	// The interface comes up last. The pod's announcements of its addresses then pass through the port.
	if err := p.raise(inside, result); err != nil {
		return err
	}
	c.describe(result, a, args, host.Attrs().HardwareAddr, mac, mtu)
	if err := types.PrintResult(result, c.CNIVersion); err != nil {
		return failure(types.ErrIOFailure, "the result: %v", err)
	}
	return nil
}

// describe adds the pod's interfaces to the IPAM plugin's result. In front of this it puts the results
// of the plugins that ran earlier for the same network.
func (c *config) describe(result *current.Result, a attachment, args *skel.CmdArgs, host, inside net.HardwareAddr, mtu int) {
	interfaces := []*current.Interface{
		{Name: a.device(), Mac: host.String(), Mtu: mtu},
		{Name: a.ifname, Mac: inside.String(), Mtu: mtu, Sandbox: args.Netns},
	}
	if result.DNS.IsEmpty() {
		result.DNS = c.DNS
	}
	var earlier current.Result
	if c.PrevResult != nil {
		if before, err := current.NewResultFromResult(c.PrevResult); err == nil { // parse has read it already
			earlier = *before
		}
	}
	for _, ip := range result.IPs {
		ip.Interface = current.Int(len(earlier.Interfaces) + 1)
	}
	result.Interfaces = append(earlier.Interfaces, interfaces...)
	result.IPs = append(earlier.IPs, result.IPs...)
	result.Routes = append(earlier.Routes, result.Routes...)
	if !earlier.DNS.IsEmpty() {
		result.DNS = earlier.DNS
	}
}
