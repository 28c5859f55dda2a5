package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A vswitch is a peer that switches vhost-user guests. Its one busy core is
// switchCore; the guests' is guestCore.
type vswitch interface {
	// up starts the switch for one turn, which ends it. It connects to the guests'
	// sockets as a client once they are there.
	up(r *run, s setup) error
}

// upWithGuests starts a switch and testpmd's two guests of it, which forward in
// mode frames of size bytes once they are told to start.
func (r *run) upWithGuests(sw vswitch, s setup, mode string, size int) (*guests, error) {
	s.guests = 2
	if err := sw.up(r, s); err != nil {
		return nil, err
	}
	return startGuests(r, mode, size)
}

// setup is what a switch is started with.
type setup struct {
	guests int   // ports of vhost-user guests, guestName(0) and on
	site   *site // has the uplink of the tunnel; nil: guests only
	// flows in the language of ovs-ofctl, by the switch's own names of its ports.
	flows func(guest func(i int) string, tunnel string) []string
}

const (
	switchCore = 0
	guestCore  = 1
)

func guestName(i int) string { return fmt.Sprint("vh", i) }

// newSwitch is the peer of that name, not started yet.
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

// writeFlows keeps a set-up's flows in a file, for add-flows.
func writeFlows(r *run, s setup, guest func(i int) string, tunnel string) (string, error) {
	file := filepath.Join(r.dir, "flows")
	return file, os.WriteFile(file, []byte(strings.Join(s.flows(guest, tunnel), "\n")+"\n"), 0o644)
}
