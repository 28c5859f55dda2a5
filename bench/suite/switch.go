// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// vswitch is a switch for vhost-user guests. It keeps the core switchCore busy. The
// guests run on guestCore.
type vswitch interface {
	// up starts the switch. The switch connects to the guests' sockets as soon as
	// they exist, and ends with the run.
	up(r *run, s setup) error
}

// upWithGuests starts a switch and two guests of testpmd. The guests are idle until
// they get the command "start". They then send frames of size bytes. The argument
// mode is testpmd's forwarding mode, such as "io" or "txonly".
func (r *run) upWithGuests(sw vswitch, s setup, mode string, size int) (*guests, error) {
	s.guests = 2
	if err := sw.up(r, s); err != nil {
		return nil, err
	}
	return startGuests(r, mode, size)
}

// setup has the ports and flows with which a switch starts.
type setup struct {
	guests int   // number of vhost-user ports, whose names are guestName(0), guestName(1) and so on
	site   *site // host whose uplink the tunnel uses; nil means no tunnel
	// flows returns flows in the syntax of ovs-ofctl. The arguments give the switch's
	// names of the guests' ports and of the tunnel port.
	flows func(guest func(i int) string, tunnel string) []string
}

const (
	switchCore = 0
	guestCore  = 1
)

func guestName(i int) string { return fmt.Sprint("vh", i) }

// newSwitch returns the switch with the peer's name. The switch is not running yet.
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

// writeFlows writes the flows of a setup to a file for the command add-flows, and
// returns the file's path.
func writeFlows(r *run, s setup, guest func(i int) string, tunnel string) (string, error) {
	file := filepath.Join(r.dir, "flows")
	return file, os.WriteFile(file, []byte(strings.Join(s.flows(guest, tunnel), "\n")+"\n"), 0o644)
}
