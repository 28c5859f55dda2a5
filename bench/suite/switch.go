// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"weft/e2e/lab"
)

// vswitch is a switch for vhost-user guests. It runs on switchCore, and the guests run on guestCore.
type vswitch interface {
	// up starts the switch. The switch connects to each guest's socket as soon as the socket exists.
	// It ends with the run.
	up(r *run, s setup)
}

// upWithGuests starts a switch, and testpmd with two guests that do not send yet. Their frames have
// size bytes. mode is testpmd's forwarding mode, such as "io" or "txonly".
func (r *run) upWithGuests(sw vswitch, s setup, mode string, size int) *guests {
	s.guests = 2
	sw.up(r, s)
	return startGuests(r, mode, size)
}

// setup has the ports and flows with which a switch starts.
type setup struct {
	guests int   // number of vhost-user ports, named by guestName
	site   *site // host whose uplink the tunnel uses; nil: no tunnel
	// flows returns flows in the syntax of ovs-ofctl for ports with the given names.
	flows func(guest func(i int) string, tunnel string) []string
}

const (
	switchCore = 0
	guestCore  = 1
)

func guestName(i int) string { return fmt.Sprint("vh", i) }

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

// writeFlows writes the flows of a setup to a file and returns the file's path.
func writeFlows(r *run, s setup, guest func(i int) string, tunnel string) string {
	file := filepath.Join(r.dir, "flows")
	lab.Check(os.WriteFile(file, []byte(strings.Join(s.flows(guest, tunnel), "\n")+"\n"), 0o644))
	return file
}
