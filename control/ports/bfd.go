// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/bfd"
	"weft/control/change"
	"weft/control/underlay"
	"weft/control/usererr"
)

// Defaults of BFD sessions. A silent remote is down after 800 ms, so a session survives a
// pause of 600 ms of a worker or host, and the loss of three packets in a row. With Open
// vSwitch's multiplier of 3, a silent remote is down after 600 ms.
const (
	bfdInterval   = 200 // milliseconds
	bfdMultiplier = 4
	// minBFDInterval is the shortest interval in milliseconds. The datapath's rate limit for BFD packets
	// relies on it.
	minBFDInterval = 50
)

var bfdOptions = optionTable{
	"bfd":        {check: oneOf("on", "off")},
	"bfd_min_tx": {check: numberIn(minBFDInterval, 10_000)},
	"bfd_min_rx": {check: numberIn(minBFDInterval, 10_000)},
	"bfd_mult":   {check: numberIn(1, 50)},
	// bfd_one_hop=on applies GTSM (RFC 5082): a packet that a router has forwarded has a smaller TTL,
	// and is refused.
	"bfd_one_hop":  {check: oneOf("on", "off")},
	"bfd_auth":     {check: oneOf("off", "keyed-sha1", "meticulous-keyed-sha1")},
	"bfd_key_file": {check: absolutePath},
	"bfd_key_id":   {check: numberIn(0, 255)},
}

var bfdAuthTypes = map[string]bfd.AuthType{"keyed-sha1": bfd.KeyedSHA1, "meticulous-keyed-sha1": bfd.MeticulousKeyedSHA1}

func absolutePath(value string) string {
	if !filepath.IsAbs(value) {
		return "an absolute path"
	}
	return ""
}

// checkBFD refuses BFD options that need another option. It also refuses BFD on a port whose option
// remote= does not list addresses.
func checkBFD(values map[string]string) error {
	for _, key := range []string{"bfd_min_tx", "bfd_min_rx", "bfd_mult", "bfd_one_hop", "bfd_auth", "bfd_key_file", "bfd_key_id"} {
		if values[key] != "" && values["bfd"] != "on" {
			return usererr.Errorf("%s=%s: expected bfd=on as well", key, values[key])
		}
	}
	_, auth := bfdAuthTypes[values["bfd_auth"]]
	switch {
	case auth && values["bfd_key_file"] == "":
		return usererr.Errorf("bfd_auth=%s: expected bfd_key_file= as well", values["bfd_auth"])
	case !auth && values["bfd_key_file"]+values["bfd_key_id"] != "":
		return usererr.Errorf("bfd_key_file=, bfd_key_id=: expected bfd_auth=keyed-sha1 or bfd_auth=meticulous-keyed-sha1 as well")
	}
	if values["bfd"] == "on" && (values["remote"] == "flow" || groupOf(values).IsValid()) {
		return usererr.Errorf("bfd=on: expected remote= to be a list of addresses; remote=%s was given", values["remote"])
	}
	return nil
}

// bfdConfig returns the configuration of the port's BFD sessions. ok is false if the port has no BFD.
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

// readBFDAuth returns the authentication of a port's sessions. If the key file cannot be read, it
// returns the error and a random key, so that no remote can authenticate.
func readBFDAuth(values map[string]string) (a bfd.Auth, err error) {
	kind, ok := bfdAuthTypes[values["bfd_auth"]]
	if !ok {
		return bfd.Auth{}, nil
	}
	id, _ := strconv.Atoi(cmp.Or(values["bfd_key_id"], "1")) // the option table has checked the value
	a = bfd.Auth{Type: kind, KeyID: uint8(id)}
	key, err := readBFDKey(values["bfd_key_file"])
	if err != nil {
		rand.Read(a.Key[:]) // rand.Read never fails
		return a, err
	}
	copy(a.Key[:], key)
	return a, nil
}

// readBFDKey reads a key from a file of one line. It follows no symbolic link, waits for no pipe, and
// refuses a file that everybody may read.
func readBFDKey(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, usererr.Errorf("bfd_key_file=%s: %v; expected a file that weftd may read, not a link", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o007 != 0 {
		return nil, usererr.Errorf("bfd_key_file=%s: expected a regular file without access for others, as after chmod 640", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, bfd.KeyLength+2))
	key := bytes.TrimSuffix(text, []byte("\n"))
	if err != nil || len(key) == 0 || len(key) > bfd.KeyLength {
		return nil, usererr.Errorf("bfd_key_file=%s: expected a key of 1 to %d bytes in one line", path, bfd.KeyLength)
	}
	return key, nil
}

// bfdSessions returns a BFD session for each of the remotes whose port has bfd=on.
func (ps *Ports) bfdSessions(_ *change.Tx, remotes []underlay.Tunnel) (list []underlay.Session) {
	for _, t := range remotes {
		p := ps.byNumber[t.Port]
		if c, ok := bfdConfig(p.values); ok {
			if d, is := p.driver.(*tunnelPort); is {
				c.Auth = d.bfdAuth()
			}
			list = append(list, underlay.Session{Tunnel: t, UDPPort: p.udpPort, VNI: p.info.VNI, Config: c, OneHop: p.values["bfd_one_hop"] == "on"})
		}
	}
	return list
}

// describeBFD describes a session for the API. It returns nil if s is nil: the remote then has no
// session.
func describeBFD(s *underlay.BFDState) *api.BFD {
	if s == nil {
		return nil
	}
	b := &api.BFD{
		State: s.State.String(), RemoteState: s.RemoteState.String(), Diagnostic: s.Diagnostic.String(), RemoteDiagnostic: s.RemoteDiagnostic.String(),
		DetectionMS: s.DetectionMS, Received: s.Received, Sent: s.Sent, Refused: s.Refused,
		RefusedReasons: map[string]uint64{},
	}
	for reason, n := range map[string]uint64{"wrong-discriminator": s.Guessed, "distant": s.Distant, "unauthentic": s.Unauthentic, "doubtful": s.Doubtful} {
		if n != 0 {
			b.RefusedReasons[reason] = n
		}
	}
	if s.Silence >= 0 {
		ms := s.Silence.Milliseconds()
		b.SilenceMS = &ms
	}
	return b
}
