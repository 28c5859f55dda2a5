// SPDX-License-Identifier: Apache-2.0

package hops

import (
	"embed"
	"fmt"
)

// Recordings that are embedded in the program. The command weft bench hops prints
// them, and the page of benchmark results draws them.
//
//go:embed testdata/*.txt
var bundled embed.FS

// Bundled has the file names of the embedded recordings in testdata.
var Bundled = []string{
	"udp_sendmsg-vxlan-ixgbe.funcgraph.txt", "udp_sendmsg-vxlan-igb.funcgraph.txt",
	"vhost-ovs-vxlan-ixgbe.perf.txt", "io_uring-3-replicas.perf.txt",
}

// ReadBundled reads one of the embedded recordings. The argument is a name in
// Bundled.
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
