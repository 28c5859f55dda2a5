// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A vswitch is a peer that switches vhost-user guests. It keeps one core busy,
// switchCore; the guests run on guestCore.
type vswitch interface {
	// up starts the switch for one turn. It connects to the guests' sockets as a
	// client once they exist.
	up(r *run, s setup) error
}

// upWithGuests starts a switch with testpmd's two guests. They forward in mode frames
// of size bytes once they are started.
func (r *run) upWithGuests(sw vswitch, s setup, mode string, size int) (*guests, error) {
	s.guests = 2
	if err := sw.up(r, s); err != nil {
		return nil, err
	}
	return startGuests(r, mode, size)
}

// setup has the ports and flows that a switch is started with.
type setup struct {
	guests int   // ports of vhost-user guests, guestName(0) and on
	site   *site // the site whose uplink the tunnel uses; nil: guests only
	// flows in ovs-ofctl's language, with the switch's names of its ports.
	flows func(guest func(i int) string, tunnel string) []string
}

const (
	switchCore = 0
	guestCore  = 1
)

func guestName(i int) string { return fmt.Sprint("vh", i) }

// newSwitch returns the peer of that name, not started.
func newSwitch(peer string) vswitch {
	switch peer {
	case weftPeer:
		return new(weft)
	case ovsPeer:
		return new(ovs)
	case testpmdPeer:
		return new(testpmdSwitch)
	}
	panic("no switch is called " + peer)
}

// writeFlows writes a set-up's flows to a file, for add-flows.
func writeFlows(r *run, s setup, guest func(i int) string, tunnel string) (string, error) {
	file := filepath.Join(r.dir, "flows")
	return file, os.WriteFile(file, []byte(strings.Join(s.flows(guest, tunnel), "\n")+"\n"), 0o644)
}
