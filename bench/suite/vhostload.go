// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"weft/e2e/lab"
	"weft/vhost/vhosttest"
)

// The functions below are the guests of the vhost experiments. They run in one process on guestCore.
// Either pairs of guests exchange frames, or one guest sends single frames.

// pairVerb is the argument with which this program runs the guests.
const pairVerb = "pair-guests"

// The guests print attachedWord when the switch has attached all of them.
const attachedWord = "attached"

type pairSpec struct {
	Size         int  // length of a frame in bytes
	Flows        int  // number of 5-tuples in each direction
	Write        bool // guests write the ports into each frame
	Touch        bool // guests read and write every cache line of each frame
	Warm, Length time.Duration
	Wakes        int // number of single frames, each after an idle time; 0: constant load
}

type pairReport struct {
	Frames, Idle   float64 // frames per second, and fraction of polls without a frame
	Lost, Bad      uint64
	Misused        int
	Wake, BareWake wakeTimes
}

// Guests check the content of one in compareOne frames.
const compareOne = 64

func runPairs(args []string) {
	var spec pairSpec
	asLoad(args, &spec)
	sockets := args[1:] // guests 2i and 2i+1 are a pair
	load := lab.Must(vhosttest.NewLoad(spec.load(len(sockets) / 2)))
	defer load.Close()
	var frame []byte
	guests := load.Guests
	if spec.Wakes > 0 {
		frame = slices.Clone(guests[0].Rx[0].Slot(0)[vhosttest.HeaderLen(guests[0].Features):][:spec.Size])
		guests = nil
		for range sockets {
			g := lab.Must(vhosttest.New(vhosttest.Options{Features: load.Guests[0].Features}))
			defer g.Close()
			guests = append(guests, g)
		}
	}
	attachAll(sockets, guests)
	if spec.Wakes == 0 {
		untilServed(load)
	}
	fmt.Println(attachedWord)
	var report pairReport
	if spec.Wakes > 0 {
		report = wake(guests, frame, spec.Wakes)
	} else {
		report = circulate(load, &spec)
	}
	sayReport(report)
}

func (s *pairSpec) load(pairs int) vhosttest.LoadConfig {
	c := vhosttest.LoadConfig{Pairs: pairs, FrameSize: s.Size, Flows: s.Flows, SampleOne: compareOne, Touch: s.Touch, Core: guestCore}
	switch {
	case s.Write && s.Flows == 1: // the guests write the UDP ports
		src, dst := vhosttest.FlowPorts(0)
		c.Vary = func(_ int, frame []byte, _ uint32) {
			binary.BigEndian.PutUint32(frame[udpPorts:], uint32(src)<<16|uint32(dst))
		}
	case !s.Write && s.Flows > 1:
		c.Keep, c.InFlight, c.Num = true, s.Flows/2, 8192
	}
	return c
}

// udpPorts is the offset of the UDP ports in an IPv4 frame without a VLAN tag.
const udpPorts = 14 + 20

// untilServed waits until the first frames return. Some switches enable their queues late, in a thread
// that needs guestCore.
func untilServed(load *vhosttest.Load) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if r := lab.Must(load.Run(10*time.Millisecond, nil)); r.Rate() > 0 {
			return
		}
	}
	lab.Check(errors.New("no frame came back"))
}

func circulate(load *vhosttest.Load, spec *pairSpec) pairReport {
	lab.Must(load.Run(spec.Warm, nil))
	r := lab.Must(load.Run(spec.Length, nil))
	return pairReport{Frames: r.Rate(), Idle: r.Idle, Lost: r.Lost, Bad: r.Bad, Misused: r.Misused}
}
