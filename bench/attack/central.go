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
		{name: "central-names", attacker: "host", summary: "a host's certificate: reports ports whose names have 12 MiB",
			setup: centralSetup(longNames), play: askCentral, peak: 512 << 20, exclusive: true},
		{name: "central-requests", attacker: "stranger", summary: "no certificate: 4 connections of 60 requests of 16 MiB that lack their last byte",
			setup: centralSetup(unfinishedRequests), play: askCentral, peak: 256 << 20, exclusive: true},
		{name: "central-idle", attacker: "stranger", summary: "no certificate: 2,100 connections that say nothing, where the central may open 2,000 files",
			setup: centralSetup(idleStrangers), play: askCentral, peak: 256 << 20, exclusive: true},
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
	central *lab.Central
	ended   sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	stopped bool
	open    map[net.Conn]bool // open connections of the attackers
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

// Close closes the connection, and removes it from those that stop closes.
func (c *attackersConn) Close() error {
	c.fleet.mu.Lock()
	delete(c.fleet.open, c.Conn)
	c.fleet.mu.Unlock()
	return c.Conn.Close()
}

// centralSetup returns a setup function that starts a weft-central server, and then the attack on it.
func centralSetup(attack func(f *fleetPlay) error) func(p *play) error {
	return func(p *play) error {
		l := lab.New(lab.Program{})
		p.later(l.Close)
		f := &fleetPlay{Fleet: l.NewFleet(1500), play: p, open: map[net.Conn]bool{}}
		p.vars["fleet"] = f
		programs, err := fewFiles(l)
		if err != nil {
			return err
		}
		f.central = f.AddCentral("a")
		f.central.Stop()
		f.central.Programs = programs
		f.central.Run()
		for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
			if err = f.ask(); err == nil {
				break
			}
			if time.Now().After(end) {
				return err
			}
		}
		p.watched = f.central.Process().PID()
		for i := range strangeAddresses {
			f.central.Host.Run("ip", "address", "add", fmt.Sprintf("172.16.0.%d/24", 201+i), "dev", "u0")
		}
		p.later(f.stop)
		return attack(f)
	}
}

// fewFiles returns a directory with a weft-central that may open only centralFiles descriptors.
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
func (f *fleetPlay) ask() error {
	_, err := f.TryAt(f.central.Address, "net", "list")
	return err
}

// askCentral plays the administrator. It fails if the server does not answer.
func askCentral(p *play) error {
	f := p.vars["fleet"].(*fleetPlay)
	began := time.Now()
	err := f.ask()
	p.slowest = max(p.slowest, time.Since(began))
	if err != nil {
		return fmt.Errorf("an administrator: %w", err)
	}
	return nil
}

// dial connects to the server from one of the attackers' addresses.
func (f *fleetPlay) dial(i int) (net.Conn, error) {
	list, err := f.dialMany(i, 1)
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// dialMany opens n connections to the server, each from the next of the attackers' addresses.
func (f *fleetPlay) dialMany(first, n int) (list []net.Conn, err error) {
	err = f.central.Host.Do(func() error {
		for i := first; i < first+n; i++ {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(172, 16, 0, byte(201+i%strangeAddresses))}, Timeout: patience}
			c, err := d.Dial("tcp", f.central.Address)
			if err != nil {
				return err
			}
			f.mu.Lock()
			f.open[c] = true
			stopped := f.stopped
			f.mu.Unlock()
			if list = append(list, &attackersConn{c, f}); stopped {
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

// repeat calls the function "attempt" until the attack ends. An attempt ends when the server closes the
// attacker's connection.
func (f *fleetPlay) repeat(attempt func() error) {
	f.ended.Go(func() {
		for !f.isStopped() {
			if attempt() != nil {
				time.Sleep(attackerRest)
			}
		}
	})
}

// longNames is the attack of an enrolled host that reports ports with long names.
func longNames(f *fleetPlay) error {
	f.Weft("host", "add", "h1", "endpoint="+hostIP)
	token := strings.TrimSpace(f.Weft("central", "invite", "--role", "host", "--name", "h1"))
	certs := filepath.Join(f.central.Data, "..", "h1-certs")
	f.Weft("--central", f.central.Address, "--central-certs", certs, "central", "enrol", "--token", token)
	keys, err := pki.Load(pki.FilesIn(certs))
	if err != nil {
		return err
	}
	for i := range 2 {
		f.repeat(func() error { return f.reportNames(keys, i) })
	}
	return nil
}

// reportNames opens a session and reports ports with long names until the server ends the session.
func (f *fleetPlay) reportNames(keys *pki.Keys, session int) error {
	c, err := grpc.NewClient("passthrough:///"+f.central.Address, grpc.WithTransportCredentials(credentials.NewTLS(keys.Client())),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return f.dial(session) }))
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
	for i := 0; err == nil && !f.isStopped(); i++ {
		copy(name, fmt.Sprintf("%08d", i))
		err = s.Send(&wire.FromHost{Message: &wire.FromHost_Attach{Attach: &wire.Attach{Port: string(name)}}})
	}
	return err
}

func strangerTLS() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}
}

// unfinishedRequests is the attack of peers without a certificate whose requests never end.
func unfinishedRequests(f *fleetPlay) error {
	for i := range 4 {
		f.repeat(func() error { return f.leaveUnfinished(i) })
	}
	return nil
}

// leaveUnfinished begins enrolment requests, and sends all bytes of each but the last one. It then waits
// until the server closes the connection, for at most the time "patience" from the start.
func (f *fleetPlay) leaveUnfinished(i int) error {
	raw, err := f.dial(i)
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
	if err := f.writeRequests(framer, &writing, ended); err != nil {
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
func (f *fleetPlay) writeRequests(framer *http2.Framer, writing *sync.Mutex, ended <-chan error) error {
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

// idleStrangers opens connections that send nothing. It replaces connections that the server closes.
func idleStrangers(f *fleetPlay) error {
	for i := range idleAtCentral / 10 {
		f.repeat(func() error {
			open, err := f.dialMany(10*i, 10)
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
