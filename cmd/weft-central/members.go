// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"

	"weft/central/store"
)

// memberIOTimeout limits the time of each read and write on a connection of another central. It is
// etcd's own limit (rafthttp.ConnReadTimeout). Members of etcd send something more often.
const memberIOTimeout = 5 * time.Second

// listenMembers starts to accept connections of other centrals for etcd, at the address c.Peer.
func (c *central) listenMembers(files store.TLSFiles) error {
	config, err := files.Server()
	if err != nil {
		return err
	}
	listener, err := transport.NewTimeoutListener(c.Peer, "http", nil, memberIOTimeout, memberIOTimeout) // the front does TLS
	if err != nil {
		return err
	}
	c.members = newFront(listener, config, limitsOfMembers)
	go func() { _ = c.members.run() }()
	return nil
}
