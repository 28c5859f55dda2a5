// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"weft/central/pki"
	"weft/central/wire"
	"weft/e2e/lab"
)

// This file has attacks on a weft-central server. During each, an administrator asks the server for the
// list of networks, again and again.

func centralAttacks() []*attack {
	return []*attack{
		{name: "centrals-all", attacker: "strangers", summary: "all that follows, against all three centrals of a cluster and their etcd at once, while one of them restarts",
			setup: clusterSetup, play: administrate, check: clusterLives, exclusive: true, long: true},
		{name: "central-names", attacker: "host", summary: "a host's certificate: reports ports whose names have 12 MiB",
			setup: centralSetup(longNames), play: askCentral, peak: 512 << 20, exclusive: true},
		{name: "central-requests", attacker: "stranger", summary: "no certificate: 4 connections of 60 requests of 16 MiB that lack their last byte",
			setup: centralSetup(unfinishedRequests), play: askCentral, peak: 256 << 20, exclusive: true},
		{name: "central-idle", attacker: "stranger", summary: "no certificate: 2,100 connections to both addresses that say nothing, where the central may open 2,000 files",
			setup: centralSetup(idleEverywhere), play: askCentral, check: etcdServes, peak: 256 << 20, exclusive: true},
	}
}

const (
	strangeAddresses = 40 // addresses from which attackers without a certificate connect
	idleAtCentral    = 2100
	centralFiles     = 2000 // limit of the server's descriptors
	longName         = 12 << 20
	unfinished       = 16<<20 - 1 // bytes of a request of which one byte is never sent
	requestStreams   = 60
	// attackerRest is the pause before an attacker connects again, after the server has closed its
	// connection.
	attackerRest = 100 * time.Millisecond
)

// fleetPlay is one attack on a weft-central server, with the network namespaces of the server, the
// administrator and the attackers.
type fleetPlay struct {
	*lab.Fleet
	play    *play
	targets []*target
	ended   sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	stopped bool
	open    map[net.Conn]bool // open connections of the attackers
}

// target is a TCP address of a weft-central server to which attackers connect.
type target struct {
	*fleetPlay
	central *lab.Central
	address string // HOST:PORT
	etcd    bool   // address is that of etcd for other centrals
}

// stop ends the attack: it closes the attackers' connections and waits for their goroutines.
func (f *fleetPlay) stop() {
	f.mu.Lock()
	f.stopped = true
	for c := range f.open {
		c.Close()
	}
	f.mu.Unlock()
	f.ended.Wait()
}

func (f *fleetPlay) isStopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopped
}

// attackersConn is an attacker's connection, which the method stop of fleetPlay closes.
type attackersConn struct {
	net.Conn
	fleet *fleetPlay
}

// Close closes the connection and removes it from the map of the attackers' open connections.
func (c *attackersConn) Close() error {
	c.fleet.mu.Lock()
	delete(c.fleet.open, c.Conn)
	c.fleet.mu.Unlock()
	return c.Conn.Close()
}

// centralSetup returns a setup function that starts a weft-central server, and then the attack on it.
func centralSetup(attack func(t *target) error) func(p *play) error {
	return func(p *play) error {
		f, err := startCentrals(p, "a")
		if err != nil {
			return err
		}
		p.watched = f.targets[0].central.Process().PID()
		p.later(f.stop)
		return attack(f.targets[0])
	}
}

// startCentrals starts one weft-central server for each name. It adds two targets for each server:
// first the address for hosts and administrators, then the address at which etcd listens for other
// servers.
func startCentrals(p *play, names ...string) (*fleetPlay, error) {
	l := lab.New(lab.Program{})
	p.later(l.Close)
	f := &fleetPlay{Fleet: l.NewFleet(1500), play: p, open: map[net.Conn]bool{}}
	p.vars["fleet"] = f
	programs, err := fewFiles(l)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		c := f.AddCentral(name)
		f.targets = append(f.targets, &target{fleetPlay: f, central: c, address: c.Address}, &target{fleetPlay: f, central: c, address: c.Peer(), etcd: true})
		for i := range strangeAddresses {
			c.Host.Run("ip", "address", "add", fmt.Sprintf("172.16.0.%d/24", 201+i), "dev", "u0")
		}
	}
	for _, c := range f.Centrals {
		c.Stop()
		c.Programs = programs
		c.Run()
		if err := f.answers(c); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// answers waits until a weft-central server answers the administrator.
func (f *fleetPlay) answers(c *lab.Central) (err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err = f.ask(c); err == nil {
			break
		}
	}
	return err
}

// fewFiles returns a directory with a script named weft-central. The script starts the real
// weft-central with a limit of centralFiles open files.
func fewFiles(l *lab.Lab) (dir string, err error) {
	program := filepath.Join(l.Programs(), "weft-central")
	dir = filepath.Join(l.Dir, "few-files")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	script := fmt.Sprintf("#!/bin/sh\nulimit -n %d\nexec %s \"$@\"\n", centralFiles, program)
	return dir, os.WriteFile(filepath.Join(dir, "weft-central"), []byte(script), 0o755)
}

// ask lists the networks, as an administrator does, and returns an error if the server does not answer.
func (f *fleetPlay) ask(c *lab.Central) error {
	_, err := f.TryAt(c.Address, "net", "list")
	return err
}

// askCentral lists the networks at the first server. It fails if the server does not answer.
func askCentral(p *play) error {
	f := p.vars["fleet"].(*fleetPlay)
	return p.timed(func() error { return f.ask(f.Centrals[0]) })
}

// timed calls "request" and measures how long it takes. The longest time counts as the time of an
// answer of the API.
func (p *play) timed(request func() error) error {
	began := time.Now()
	err := request()
	p.slowest = max(p.slowest, time.Since(began))
	if err != nil {
		return fmt.Errorf("an administrator: %w", err)
	}
	return nil
}

// dial connects to the server from one of the attackers' addresses.
func (t *target) dial(i int) (net.Conn, error) {
	list, err := t.dialMany(i, 1)
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// dialMany opens n connections to the server. They use the attackers' addresses in turn.
func (t *target) dialMany(first, n int) (list []net.Conn, err error) {
	err = t.central.Host.Do(func() error {
		for i := first; i < first+n; i++ {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(172, 16, 0, byte(201+i%strangeAddresses))}, Timeout: patience}
			c, err := d.Dial("tcp", t.address)
			if err != nil {
				return err
			}
			t.mu.Lock()
			t.open[c] = true
			stopped := t.stopped
			t.mu.Unlock()
			if list = append(list, &attackersConn{c, t.fleetPlay}); stopped {
				return errors.New("the attack has ended")
			}
		}
		return nil
	})
	if err != nil {
		for _, c := range list {
			c.Close()
		}
		list = nil
	}
	return list, err
}

// repeat calls the function "attempt" again and again until the attack ends. After a failed call, it
// pauses for the time attackerRest.
func (f *fleetPlay) repeat(attempt func() error) {
	f.ended.Go(func() {
		for !f.isStopped() {
			if attempt() != nil {
				time.Sleep(attackerRest)
			}
		}
	})
}

// longNames is the attack of a host that has a valid certificate. The host reports ports with long
// names to the server.
func longNames(t *target) error {
	keys, err := t.enrolLiar()
	if err == nil {
		t.sendNames(keys)
	}
	return err
}

// enrolLiar adds the attackers' host to the hosts that weft-central knows. It returns the host's
// certificate and key.
func (f *fleetPlay) enrolLiar() (*pki.Keys, error) {
	c := f.Centrals[0]
	f.Weft("host", "add", "liar", "endpoint=172.16.0.250")
	token := strings.TrimSpace(f.Weft("central", "invite", "--role", "host", "--name", "liar"))
	certs := filepath.Join(c.Data, "..", "liar-certs")
	f.Weft("--central", c.Address, "--central-certs", certs, "central", "enrol", "--token", token)
	return pki.Load(pki.FilesIn(certs))
}

// sendNames starts to report ports with long names on two connections at the same time.
func (t *target) sendNames(keys *pki.Keys) {
	for i := range 2 {
		t.repeat(func() error { return t.reportNames(keys, i) })
	}
}

// reportNames opens a gRPC stream to the server as the attackers' host. It reports ports with long
// names until the server ends the stream or the attack is over.
func (t *target) reportNames(keys *pki.Keys, session int) error {
	c, err := grpc.NewClient("passthrough:///"+t.address, grpc.WithTransportCredentials(credentials.NewTLS(keys.Client())),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return t.dial(session) }))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := context.WithTimeout(context.Background(), patience)
	defer stop()
	s, err := wire.NewHubClient(c).Follow(ctx)
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := s.Recv(); err != nil {
				return
			}
		}
	}()
	name := []byte(strings.Repeat("n", longName))
	err = s.Send(&wire.FromHost{Message: &wire.FromHost_Hello{Hello: &wire.Hello{Version: "attack", Ports: []string{string(name)}}}})
	for i := 0; err == nil && !t.isStopped(); i++ {
		copy(name, fmt.Sprintf("%08d", i))
		err = s.Send(&wire.FromHost{Message: &wire.FromHost_Attach{Attach: &wire.Attach{Port: string(name)}}})
	}
	return err
}

func strangerTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}
}

// unfinishedRequests is the attack of peers without a certificate whose requests never end.
func unfinishedRequests(t *target) error {
	for i := range 4 {
		t.repeat(func() error { return t.leaveUnfinished(i) })
	}
	return nil
}

// leaveUnfinished begins enrolment requests, and sends all bytes of each but the last one. It then waits
// until the server closes the connection, for at most the time "patience" from the start.
func (t *target) leaveUnfinished(i int) error {
	raw, err := t.dial(i)
	if err != nil {
		return err
	}
	c := tls.Client(raw, strangerTLS())
	defer c.Close()
	stop := time.AfterFunc(patience, func() { c.Close() })
	defer stop.Stop()
	if _, err := c.Write([]byte(http2.ClientPreface)); err != nil {
		return err
	}
	var writing sync.Mutex
	framer := http2.NewFramer(c, c)
	ended := make(chan error, 1)
	go func() { ended <- answerFrames(framer, &writing) }()
	if err := t.writeRequests(framer, &writing, ended); err != nil {
		return err
	}
	return <-ended
}

// answerFrames reads HTTP/2 frames, and acknowledges the server's pings and settings.
func answerFrames(framer *http2.Framer, writing *sync.Mutex) error {
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return err
		}
		writing.Lock()
		switch frame := frame.(type) {
		case *http2.SettingsFrame:
			if !frame.IsAck() {
				err = framer.WriteSettingsAck()
			}
		case *http2.PingFrame:
			if !frame.IsAck() {
				err = framer.WritePing(true, frame.Data)
			}
		}
		writing.Unlock()
		if err != nil {
			return err
		}
	}
}

// writeRequests begins requestStreams requests on one connection, and sends chunks of them in turn, without
// the last byte of each. It ignores the server's flow control.
func (t *target) writeRequests(framer *http2.Framer, writing *sync.Mutex, ended <-chan error) error {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	headers := []string{":method", "POST", ":scheme", "https", ":path", wire.Enrolment_Enrol_FullMethodName, ":authority", "central",
		"content-type", "application/grpc", "te", "trailers"}
	write := func(f func() error) error {
		writing.Lock()
		defer writing.Unlock()
		return f()
	}
	stream := func(i int) uint32 { return uint32(2*i + 1) }
	prefix := binary.BigEndian.AppendUint32([]byte{0}, unfinished+1) // no compression, and the length of the message
	err := write(func() error { return framer.WriteSettings() })
	for i := 0; i < requestStreams && err == nil; i++ {
		block.Reset()
		for h := 0; h < len(headers); h += 2 {
			_ = encoder.WriteField(hpack.HeaderField{Name: headers[h], Value: headers[h+1]}) // to memory: no error
		}
		err = write(func() error {
			return errors.Join(framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream(i), BlockFragment: block.Bytes(), EndHeaders: true}),
				framer.WriteData(stream(i), false, prefix))
		})
	}
	chunk := make([]byte, 16<<10)
	for n := len(chunk); err == nil && n <= unfinished; n += len(chunk) {
		for i := range requestStreams {
			select {
			case err := <-ended:
				return err
			default:
			}
			if err = write(func() error { return framer.WriteData(stream(i), false, chunk) }); err != nil {
				return err
			}
		}
	}
	return err
}

// idleEverywhere opens idleAtCentral connections that send nothing. They are divided equally between
// the server's address for hosts and administrators and the address of etcd.
func idleEverywhere(t *target) error {
	for _, at := range t.targets {
		if err := idleStrangers(at, idleAtCentral/len(t.targets)); err != nil {
			return err
		}
	}
	return nil
}

// etcdServes fails unless etcd accepts a connection at its address for other servers, and asks for a
// client certificate.
func etcdServes(p *play) (err error) {
	f := p.vars["fleet"].(*fleetPlay)
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(attackerRest) {
		if err = f.targets[1].asksForCertificate(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("other centrals: %w", err)
}

// asksForCertificate fails unless the server asks for a client certificate in the TLS handshake. It
// connects from an address that no attacker uses.
func (t *target) asksForCertificate() (err error) {
	var raw net.Conn
	err = t.central.Host.Do(func() (err error) {
		raw, err = net.DialTimeout("tcp", t.address, patience)
		return err
	})
	if err != nil {
		return err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(patience))
	asked := false
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return &tls.Certificate{}, nil
		}}
	if err = tls.Client(raw, config).Handshake(); err == nil && !asked {
		err = errors.New("no certificate is needed")
	}
	return err
}

// idleStrangers opens connections that send nothing, ten at a time. When the server closes the first of
// the ten, it closes the other nine too and opens ten new ones.
func idleStrangers(t *target, connections int) error {
	for i := range connections / 10 {
		t.repeat(func() error {
			open, err := t.dialMany(10*i, 10)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, open[0])
			for _, c := range open {
				c.Close()
			}
			return errors.Join(err, io.EOF)
		})
	}
	return nil
}
