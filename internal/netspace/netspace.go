// SPDX-License-Identifier: Apache-2.0

// Package netspace opens netlink sockets in network namespaces. It calls setns(2), which needs
// CAP_SYS_ADMIN, only if the calling thread is in another namespace.
package netspace

import (
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Here reports whether the calling thread is in the network namespace ns. A goroutine that is not
// locked to a thread is in the namespace of the process.
func Here(ns netns.NsHandle) bool {
	own, err := netns.Get()
	if err != nil {
		return false
	}
	defer own.Close()
	return own.Equal(ns)
}

// Route returns a netlink handle for links, addresses, routes and neighbours of the
// namespace ns. The caller closes it.
func Route(ns netns.NsHandle) (*netlink.Handle, error) {
	if Here(ns) {
		return netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	return netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
}
