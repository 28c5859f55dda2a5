// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"golang.org/x/sys/unix"

	"weft/vhost/vhosttest"
)

// In some attacks of this file, several rings or ports share memory, rings or descriptors. In the
// others, the attacker sends frames that the switch copies to many ports.

func sharedAttacks() []*attack {
	return []*attack{
		{name: "shared-rings", attacker: "front end", summary: "attaches one memory with the same rings to two ports",
			setup: twoPorts, play: shareRings},
		{name: "one-eventfd", attacker: "front end", summary: "gives one eventfd as kick, call and error event of the rings of two ports",
			setup: twoPorts, play: shareEvents},
		{name: "broadcast-flood", exclusive: true, attacker: "guest", summary: "sends broadcasts and frames to unknown addresses without end",
			mayLose: "what their rings have no room for beside the flood", setup: member(), play: flood(forEverybody)},
	}
}

func twoPorts(p *play) error {
	for _, side := range []string{"-0", "-1"} {
		if _, err := p.port(side, echoes); err != nil {
			return err
		}
	}
	return nil
}

// shareRings attaches a guest to two ports, so that both devices use the same rings, and sends frames.
// The switch may end the session of either port.
func shareRings(p *play) error {
	g, err := p.guest(p.site.socket(p.name+"-0"), vhosttest.Options{Num: 64, Interrupts: p.repeats%2 == 0})
	if err != nil {
		return err
	}
	defer g.close()
	f, err := vhosttest.Dial(p.site.socket(p.name + "-1"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Attach(g.Guest); err != nil {
		return ignoreClosed(err)
	}
	g.chatter()
	return nil
}

// shareEvents attaches two guests that use one eventfd for kicks, calls and errors. A call of one port
// then is also a kick of both ports.
func shareEvents(p *play) error {
	event, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(event)
	var guests []*guest
	for _, side := range []string{"-0", "-1"} {
		g, err := p.guest(p.site.socket(p.name+side), vhosttest.Options{Num: 64, Interrupts: true})
		if err != nil {
			return err
		}
		defer g.close()
		guests = append(guests, g)
		for ring := range uint64(2) {
			for _, request := range []uint32{vhosttest.SetVringCall, vhosttest.SetVringErr, vhosttest.SetVringKick} {
				if err := g.message(request, vhosttest.Number(ring), event); err != nil {
					return ignoreClosed(err)
				}
			}
		}
	}
	for range 10 {
		for _, g := range guests {
			g.chatter()
		}
	}
	return nil
}

// chatter sends frames for 2 ms. It ignores errors, because the switch may have closed the guest's
// connection.
func (g *guest) chatter() {
	frame := make([]byte, 64)
	for end := time.Now().Add(2 * time.Millisecond); time.Now().Before(end); {
		for range 16 {
			g.Tx[0].Send(frame)
		}
		g.flush()
	}
}

// forEverybody builds a frame that the switch floods: a broadcast, or a frame to an
// address that the switch has not learned.
func forEverybody(p *play, f []byte) []byte {
	put(f, [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, attackerMAC, 0x88b5)
	if p.rng.IntN(2) == 0 {
		mac := randomMAC(p.rng)
		copy(f, mac[:])
	}
	return f[:64]
}
