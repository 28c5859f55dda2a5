// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// A network without the key "ipam" has no IP addresses: the plugin gives the pod an interface only.

// delegate runs the IPAM plugin, if the network has one. call is a function of package invoke for the
// operation, such as DelegateDel.
func (c *config) delegate(args *skel.CmdArgs, call func(context.Context, string, []byte, invoke.Exec) error) error {
	if c.IPAM.Type == "" {
		return nil
	}
	if err := call(context.Background(), c.IPAM.Type, args.StdinData, nil); err != nil {
		return coded(codeIPAM, "IPAM plugin "+c.IPAM.Type, err)
	}
	return nil
}

// allocate asks the IPAM plugin for the pod's addresses, routes and name servers.
func (c *config) allocate(args *skel.CmdArgs) (*current.Result, error) {
	if c.IPAM.Type == "" {
		return &current.Result{}, nil
	}
	answer, err := invoke.DelegateAdd(context.Background(), c.IPAM.Type, args.StdinData, nil)
	if err != nil {
		return nil, coded(codeIPAM, "IPAM plugin "+c.IPAM.Type, err)
	}
	result, err := current.NewResultFromResult(answer)
	if err == nil && len(result.IPs) > 0 {
		return result, nil
	}
	_ = c.delegate(args, invoke.DelegateDel) // the first error matters
	if err != nil {
		return nil, coded(codeIPAM, "IPAM plugin "+c.IPAM.Type, err)
	}
	return nil, failure(codeIPAM, "IPAM plugin %s: its result has no address", c.IPAM.Type)
}
