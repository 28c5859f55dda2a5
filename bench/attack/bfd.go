// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"weft/bfd"
)

// This file has the attack of a host that sees none of a BFD session's packets, but can forge the
// remote's address. It guesses the session's discriminator.

const (
	guessedVNI     = 300
	guessedSession = 0x5eed0001 // discriminator of the session's true remote
	bfdUDPPort     = 3784
	bfdHeaders     = 8 + 14 + 20 + 8 // bytes of the headers before BFD: VXLAN, Ethernet, IPv4, UDP
	// bfdIntervalUS and bfdMultiplier are large, so that a busy machine does not end the session.
	bfdIntervalUS = 1_000_000
	bfdMultiplier = 30
)

// bfdRemote is the true remote of the session. It answers the switch's BFD packets.
type bfdRemote struct {
	conn *net.UDPConn

	mu      sync.Mutex
	session bfd.Session
	begin   time.Time
}

func (r *bfdRemote) now() uint64 { return uint64(time.Since(r.begin)) + 1 }

// state returns the session's state at the remote, and the switch's discriminator.
func (r *bfdRemote) state() (bfd.State, uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.session.State, r.session.Theirs
}

// putBFD writes a BFD packet in VXLAN, without the outer Ethernet, IP and UDP headers.
func putBFD(b []byte, payload []byte) []byte {
	vxlan(b, guessedVNI)
	f := udp(b[8:], 0xa9fe0101, 0xa9fe0100, 49152, bfdUDPPort, 14+20+8+len(payload))
	copy(f, []byte{0, 0x23, 0x20, 0, 0, 1})
	f[14+8] = 255 // TTL
	ip := f[14:34]
	binary.BigEndian.PutUint16(ip[10:], 0)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum>>16+sum))
	copy(f[42:], payload)
	return b[:8+len(f)]
}

// run answers the switch's BFD packets until the socket is closed.
func (r *bfdRemote) run() {
	b := make([]byte, 2048)
	for {
		_ = r.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		n, _, err := r.conn.ReadFromUDPAddrPort(b)
		var late net.Error
		if err != nil && !(errors.As(err, &late) && late.Timeout()) {
			return
		}
		if err == nil && n >= bfdHeaders+bfd.Length && binary.BigEndian.Uint32(b[4:])>>8 == guessedVNI {
			if p, ok := bfd.Parse(b[bfdHeaders:n]); ok {
				r.receive(&p)
			}
		}
		r.mu.Lock()
		send := r.session.Tick(r.now())
		p := r.session.Packet()
		r.mu.Unlock()
		if send {
			r.send(p)
		}
	}
}

func (r *bfdRemote) receive(p *bfd.Packet) {
	r.mu.Lock()
	_, polled := r.session.Receive(p, r.now())
	answer := r.session.Answer(p)
	r.mu.Unlock()
	if polled {
		r.send(answer)
	}
}

func (r *bfdRemote) send(p bfd.Packet) {
	var payload [bfd.MaxLength]byte
	r.mu.Lock()
	n := r.session.Encode(&payload, p)
	r.mu.Unlock()
	_, _ = r.conn.WriteToUDP(putBFD(make([]byte, 256), payload[:n]), &net.UDPAddr{IP: net.ParseIP(hostIP), Port: 4789})
}

// bfdSetup adds a tunnel port with BFD, starts its remote, and waits until the session is up.
func bfdSetup(p *play) error {
	r := &bfdRemote{begin: time.Now()}
	r.session.Begin(bfd.Config{MinTx: bfdIntervalUS, MinRx: bfdIntervalUS, Multiplier: bfdMultiplier}, guessedSession, r.now())
	err := p.site.peer.Do(func() (err error) {
		r.conn, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 4789})
		return err
	})
	if err != nil {
		return err
	}
	p.later(func() { r.conn.Close() })
	go r.run()
	p.vars["remote"] = r
	if err := p.addPort(p.name+"-t", "type=vxlan", fmt.Sprint("vni=", guessedVNI), "remote="+peerIP, "bfd=on", fmt.Sprint("bfd_mult=", bfdMultiplier)); err != nil {
		return err
	}
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if state, _ := r.state(); state == bfd.Up {
			break
		}
		if time.Now().After(end) {
			return errors.New("the BFD session does not come up")
		}
	}
	return peerSocket(p)
}

// guessBFD forges a BFD packet with a random discriminator. The packet would end the session if the
// discriminator were right. On average, one packet in 100,000 gets the right discriminator on purpose,
// because chance alone has one hit in 2^32 packets.
func guessBFD(p *play, b []byte) int {
	yours := p.rng.Uint32()
	if p.rng.IntN(100_000) == 0 {
		_, yours = p.vars["remote"].(*bfdRemote).state()
	}
	guess := bfd.Packet{Diag: bfd.NeighborSignalDown, State: bfd.State(p.rng.IntN(2)), Multiplier: 3, Mine: guessedSession, Yours: yours, MinTx: bfdIntervalUS, MinRx: bfdIntervalUS}
	var payload [bfd.Length]byte
	guess.Put(payload[:])
	return len(putBFD(b, payload[:]))
}

// sessionLives fails if a forged packet has ended the session. It does not fail if the session ended
// because a busy machine delayed the true remote.
func sessionLives(p *play) error {
	show, err := p.site.client.Show()
	if err != nil {
		return err
	}
	for _, port := range show.Ports {
		if port.Name != p.name+"-t" || len(port.Remotes) == 0 || port.Remotes[0].BFD == nil {
			continue
		}
		b := port.Remotes[0].BFD
		p.notes = fmt.Sprintf("session %s (%s); refused %v", b.State, b.Diagnostic, b.RefusedReasons)
		if b.Diagnostic == bfd.NeighborSignalDown.String() {
			return errors.New("a guess has ended the session")
		}
		if b.RefusedReasons["wrong-discriminator"] == 0 {
			return errors.New("no guess is counted")
		}
		return nil
	}
	return errors.New("the session is gone")
}
