// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
)

// del handles the CNI operation DEL, which disconnects a pod. It does not fail if parts are gone
// already, such as the pod's namespace. If weftd does not answer, del removes the rest and fails with
// code 11. The runtime then repeats the DEL, so that the port is deleted later.
func del(args *skel.CmdArgs) error {
	c, s, err := parseAndConnect(args)
	if err != nil {
		return err
	}
	a := attachmentOf(c, args)
	port := s.deletePort(a.port())
	link := removeLink(a)
	// The addresses are freed last. Otherwise another pod could get them while this one can still send.
	return joined(port, link, c.delegate(args, invoke.DelegateDel))
}

// collect handles the CNI operation GC. It removes the ports, devices and addresses of the network's
// attachments that the runtime no longer lists.
func collect(args *skel.CmdArgs) error {
	c, err := parse(args.StdinData)
	if err != nil {
		return err
	}
	if !hasKey(args.StdinData, "cni.dev/valid-attachments") {
		return failure(types.ErrInvalidNetworkConfig, "network %s: cni.dev/valid-attachments is missing; expected a list, which may be empty", c.Name)
	}
	s, err := c.connect()
	if err != nil {
		return err
	}
	g := collection{network: c.Name, valid: map[attachment]bool{}, stale: map[attachment]bool{}}
	for _, valid := range c.ValidAttachments {
		g.valid[attachment{c.Name, valid.ContainerID, valid.IfName}] = true
	}
	errs := []error{g.ports(s), g.devices()}
	for a := range g.stale {
		errs = append(errs, c.release(args, a))
	}
	return joined(append(errs, c.delegate(args, invoke.DelegateGC))...)
}

// hasKey reports whether a configuration has the key. libcni writes an empty list as null.
func hasKey(data []byte, key string) bool {
	var keys map[string]json.RawMessage
	return json.Unmarshal(data, &keys) == nil && keys[key] != nil
}

// collection is the state of one GC operation.
type collection struct {
	network string
	valid   map[attachment]bool
	stale   map[attachment]bool // attachments that had a port or a device
}

// isValid reports whether name is that of a valid attachment's port or device. nameOf returns the name
// of an attachment's port, or that of its device.
func (g *collection) isValid(name string, nameOf func(attachment) string) bool {
	for a := range g.valid {
		if nameOf(a) == name {
			return true
		}
	}
	return false
}

// ports deletes the network's ports that belong to no valid attachment.
func (g *collection) ports(s *weftSwitch) error {
	ports, err := s.ports(portPrefix(g.network))
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range ports {
		if g.isValid(p.Name, attachment.port) {
			continue
		}
		errs = append(errs, s.deletePort(p.Name))
		if a, ok := attachmentOfID(p.Options["id"]); ok && a.port() == p.Name {
			g.stale[a] = true
		}
	}
	return joined(errs...)
}

// devices removes the network's veth pairs that belong to no valid attachment.
func (g *collection) devices() error {
	links, err := netlink.LinkList()
	if err != nil {
		return failure(codeInterface, "the list of devices: %v", err)
	}
	var errs []error
	for _, link := range links {
		name, alias := link.Attrs().Name, link.Attrs().Alias
		if link.Type() != "veth" || !strings.HasPrefix(alias, aliasPrefix(g.network)) || g.isValid(name, attachment.device) {
			continue
		}
		if err := netlink.LinkDel(link); err != nil {
			errs = append(errs, failure(codeInterface, "device %s: %v", name, err))
		}
		words := strings.Fields(strings.TrimPrefix(alias, aliasPrefix(g.network)))
		if len(words) == 2 {
			g.stale[attachment{g.network, words[0], words[1]}] = true
		}
	}
	return joined(errs...)
}

// release frees the IP addresses of an attachment. It calls DEL of the IPAM plugin, with the attachment
// in the environment. The plugin "host-local" has no GC (containernetworking/plugins 1.10).
func (c *config) release(args *skel.CmdArgs, a attachment) error {
	for name, value := range map[string]string{"CNI_CONTAINERID": a.container, "CNI_IFNAME": a.ifname, "CNI_NETNS": ""} {
		if err := os.Setenv(name, value); err != nil {
			return failure(types.ErrInvalidEnvironmentVariables, "%s: %v", name, err)
		}
	}
	return c.delegate(args, invoke.DelegateDel)
}
