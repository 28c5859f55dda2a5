// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"strconv"

	"weft/api"
	"weft/bfd"
	"weft/control/underlay"
	"weft/control/usererr"
)

// Defaults of BFD sessions. A silent remote is down after 800 ms, so a session survives a
// pause of 600 ms of a worker or host, and the loss of three packets in a row. With Open
// vSwitch's multiplier of 3, a silent remote is down after 600 ms.
const (
	bfdInterval   = 200 // milliseconds
	bfdMultiplier = 4
	// minBFDInterval is the shortest interval in milliseconds. The datapath's rate limit
	// of sessions depends on it.
	minBFDInterval = 50
)

var bfdOptions = optionTable{
	"bfd":        {check: oneOf("on", "off")},
	"bfd_min_tx": {check: numberIn(minBFDInterval, 10_000)},
	"bfd_min_rx": {check: numberIn(minBFDInterval, 10_000)},
	"bfd_mult":   {check: numberIn(1, 50)},
}

// checkBFD checks the BFD options of a tunnel port against its other options.
func checkBFD(values map[string]string) error {
	for _, key := range []string{"bfd_min_tx", "bfd_min_rx", "bfd_mult"} {
		if values[key] != "" && values["bfd"] != "on" {
			return usererr.Errorf("%s=%s: expected bfd=on as well", key, values[key])
		}
	}
	if values["bfd"] == "on" && (values["remote"] == "flow" || groupOf(values).IsValid()) {
		return usererr.Errorf("bfd=on: expected remote= to be a list of addresses; remote=%s was given", values["remote"])
	}
	return nil
}

// bfdConfig returns the configuration of the port's sessions. ok is false without BFD.
func bfdConfig(values map[string]string) (c bfd.Config, ok bool) {
	number := func(key string, missing int) int {
		if n, err := strconv.Atoi(values[key]); err == nil { // the option table has checked the value
			return n
		}
		return missing
	}
	return bfd.Config{
		MinTx: uint32(1000 * number("bfd_min_tx", bfdInterval)), MinRx: uint32(1000 * number("bfd_min_rx", bfdInterval)),
		Multiplier: uint8(number("bfd_mult", bfdMultiplier)),
	}, values["bfd"] == "on"
}

// bfdSessions returns the sessions of all remotes of ports with BFD. The caller holds the
// configuration lock.
func (ps *Ports) bfdSessions(remotes []underlay.Tunnel) (list []underlay.Session) {
	for _, t := range remotes {
		p := ps.byNumber[t.Port]
		if c, ok := bfdConfig(p.values); ok {
			list = append(list, underlay.Session{Tunnel: t, UDPPort: p.udpPort, VNI: p.info.VNI, Config: c})
		}
	}
	return list
}

// describeBFD describes a session for the API; nil: the remote has none.
func describeBFD(s *underlay.BFDState) *api.BFD {
	if s == nil {
		return nil
	}
	b := &api.BFD{
		State: s.State.String(), RemoteState: s.RemoteState.String(), Diagnostic: s.Diagnostic.String(), RemoteDiagnostic: s.RemoteDiagnostic.String(),
		DetectionMS: s.DetectionMS, Received: s.Received, Sent: s.Sent, Refused: s.Refused,
	}
	if s.Silence >= 0 {
		ms := s.Silence.Milliseconds()
		b.SilenceMS = &ms
	}
	return b
}
