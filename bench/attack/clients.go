// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// This file has attacks of a client of the API or of the metrics endpoint. Their requests are harmless
// or malformed, because a client that may write could simply stop the switch.

func clientAttacks() []*attack {
	return []*attack{
		{name: "idle-connections", attacker: "client", summary: "300 connections to the metrics and 300 to the API that say nothing",
			setup: idleConnections, play: pause},
		{name: "slow-headers", attacker: "client", summary: "100 requests whose headers come a byte at a time",
			setup: slowHeaders, play: pause},
		{name: "slow-bodies", attacker: "client", summary: "50 requests whose bodies do not come",
			setup: slowBodies, play: pause},
		{name: "huge-requests", attacker: "client", summary: "bodies of 64 MiB, paths of a megabyte, deep JSON", memory: 512 << 20,
			play: hugeRequests},
		{name: "wrong-requests", attacker: "client", summary: "requests that make no sense", message: true,
			play: wrongRequests},
		{name: "stopped-readers", attacker: "client", summary: "monitors and captures that are stopped, with frames to see",
			setup: stoppedReaders, play: flood(func(p *play, f []byte) []byte { return f[:64] })},
		{name: "dump-storm", attacker: "client", summary: "16 clients that ask for everything all the time",
			play: dumpStorm},
		{name: "ports-come-and-go", attacker: "client", summary: "adds and deletes a port", message: true,
			play: func(p *play) error {
				name := p.name + "-p"
				_, err := p.site.client.AddPort(name, []string{"type=vhost-user", "path=" + p.site.socket(name)})
				p.site.delPort(name, err)
				return err
			}},
	}
}

func pause(p *play) error {
	time.Sleep(50 * time.Millisecond)
	return nil
}

func (p *play) dialAPI() (net.Conn, error) {
	c, err := net.DialTimeout("unix", p.site.daemon.Socket, time.Second)
	if err == nil {
		p.later(func() { c.Close() })
	}
	return c, err
}

func (p *play) dialMetrics() (c net.Conn, err error) {
	err = p.site.peer.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", hostIP+":9100", time.Second)
		return err
	})
	if err == nil {
		p.later(func() { c.Close() })
	}
	return c, err
}

// idleConnections opens connections to the metrics endpoint until the switch refuses one, and sends
// nothing on them.
func idleConnections(p *play) error {
	for range 300 {
		if _, err := p.dialMetrics(); err != nil {
			break
		}
	}
	for range 300 {
		if _, err := p.dialAPI(); err != nil {
			break
		}
	}
	return nil
}

func slowHeaders(p *play) error {
	stop := make(chan struct{})
	p.later(func() { close(stop) })
	for range 100 {
		c, err := p.dialAPI()
		if err != nil {
			break
		}
		go func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
				if _, err := c.Write([]byte("G")); err != nil {
					return
				}
			}
		}()
	}
	return nil
}

func slowBodies(p *play) error {
	for i := range 50 {
		c, err := p.dialAPI()
		if err != nil {
			break
		}
		kind, path := "application/json", "/v1/ports"
		if i%2 == 0 {
			kind, path = "text/plain", "/v1/flows?op=add"
		}
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: weft\r\nContent-Type: %s\r\nContent-Length: 60000000\r\n\r\n{", path, kind)
	}
	return nil
}

func (p *play) request(method, path, kind string, body io.Reader) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", p.site.daemon.Socket)
	}}
	req, err := http.NewRequest(method, "http://weft"+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", kind)
	resp, err := (&http.Client{Transport: transport, Timeout: patience}).Do(req)
	if err != nil {
		return nil // no fault: the switch may refuse a request and close the connection
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return nil
}

func hugeRequests(p *play) error {
	const huge = 64 << 20
	switch p.rng.IntN(4) {
	case 0:
		return p.request("POST", "/v1/flows?op=add", "text/plain", bytes.NewReader(bytes.Repeat([]byte("# nothing\n"), huge/10)))
	case 1:
		return p.request("POST", "/v1/ports", "application/json", strings.NewReader(`{"name":"`+strings.Repeat("x", huge)+`"}`))
	case 2:
		return p.request("POST", "/v1/ports", "application/json", strings.NewReader(strings.Repeat(`[`, 1<<20)))
	}
	return p.request("GET", "/v1/flows?match="+strings.Repeat("x", 900_000), "", nil)
}

func wrongRequests(p *play) error {
	paths := []string{"/v1/ports/..", "/v1/nothing", "/v1/flows?match=in_port%3D%00", "/v1/trace?match=ip", "/v1/conntrack?arg=zone=x"}
	return p.request([]string{"GET", "POST", "DELETE"}[p.rng.IntN(3)], paths[p.rng.IntN(len(paths))], "application/json", strings.NewReader("{"))
}

// stoppedReaders starts clients that read streams of the API, and stops their processes with SIGSTOP, so
// that they no longer read.
func stoppedReaders(p *play) error {
	if err := sender(echoes, guestOptions)(p); err != nil {
		return err
	}
	for _, args := range [][]string{{"monitor"}, {"capture", p.name}, {"capture", "--drops"}, {"monitor"}} {
		cmd := exec.Command(p.site.daemon.Binary("weft"), append([]string{"--socket", p.site.daemon.Socket}, args...)...)
		if err := cmd.Start(); err != nil {
			return err
		}
		p.later(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		time.Sleep(100 * time.Millisecond)
		_ = cmd.Process.Signal(syscall.SIGSTOP)
	}
	return nil
}

func dumpStorm(p *play) error {
	var all sync.WaitGroup
	for i := range 16 {
		path := []string{"/v1/flows", "/v1/megaflows", "/metrics", "/v1/conntrack", "/v1/show"}[i%5]
		all.Add(1)
		go func() {
			defer all.Done()
			_ = p.request("GET", path, "", nil)
		}()
	}
	all.Wait()
	return nil
}
