// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"embed"
	"fmt"
)

// The embedded recordings: weft bench hops prints them, the page of results draws
// them.
//
//go:embed testdata/*.txt
var bundled embed.FS

// Bundled names the recordings in testdata.
var Bundled = []string{
	"udp_sendmsg-vxlan-ixgbe.funcgraph.txt", "udp_sendmsg-vxlan-igb.funcgraph.txt",
	"vhost-ovs-vxlan-ixgbe.perf.txt", "io_uring-3-replicas.perf.txt",
}

// ReadBundled reads one of the recordings in testdata.
func ReadBundled(file string) (*Recording, error) {
	f, err := bundled.Open("testdata/" + file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := parse(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	r.Name = recordingName(file)
	return r, nil
}
