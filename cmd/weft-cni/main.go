// SPDX-License-Identifier: Apache-2.0

// Weft-cni is a plugin of the Container Network Interface (CNI) 1.1. It connects a pod to a bridge of
// weftd with a veth pair: the pod has one end, and the other end is a port of type=device. A container
// runtime starts it for each operation. The operation is in CNI_COMMAND, and the network's
// configuration is on standard input. docs/cni.md describes the plugin.
package main

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"weft/internal/buildinfo"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, GC: collect, Status: status}, version.All,
		fmt.Sprintf("CNI plugin weft-cni %s; docs/cni.md describes its configuration", buildinfo.Own().Version))
}
