// SPDX-License-Identifier: Apache-2.0

package flowexport

import (
	"context"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft/control/flowexport/flowexporttest"
	"weft/control/limits"
	"weft/datapath"
)

// fakeCaptures is a Captures that takes the sampled frames from a channel.
type fakeCaptures chan *datapath.Captured

func (c fakeCaptures) Run(ctx context.Context, _ datapath.Capture, ready, _ func() error, handle func(*datapath.Captured, uint64) error) error {
	if err := ready(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-c:
			if err := handle(f, 0); err != nil {
				return err
			}
		}
	}
}

func listen(t *testing.T) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return conn, conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// A sampled frame reaches the collectors of its exporter, with IPFIX and sFlow. An exporter that is
// removed sends what it has cached.
func TestService(t *testing.T) {
	ipfix, ipfixTarget := listen(t)
	sflow, sflowTarget := listen(t)
	s, captures := New(), make(fakeCaptures)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Run(ctx, Setup{Captures: captures, Interfaces: func() []Interface { return []Interface{{Number: 1, Index: 11, Name: "vm1"}} }, Log: slog.New(slog.DiscardHandler)})
	}()
	s.Set(map[uint32]*Config{
		5: {Targets: []netip.AddrPort{ipfixTarget}, ActiveTimeout: time.Hour, MaxFlows: 10, TemplateInterval: time.Hour},
		6: {SFlow: true, Targets: []netip.AddrPort{sflowTarget}, Header: 64},
	})
	for _, exporter := range []uint16{5, 5, 6, 9} {
		sample := sampleOf(tcpFrame(t, 100), math.MaxUint32)
		sample.Exporter = exporter
		captures <- &datapath.Captured{Keyed: true, Sampled: &sample.Sampled, InPort: 1, Len: sample.Len, Data: sample.Data}
	}
	b := make([]byte, 2000)
	n, err := sflow.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := decodeSFlow(t, b[:n]); len(d.FlowSamples) != 1 || d.AgentAddress.String() != "127.0.0.1" {
		t.Errorf("sFlow: %+v", d)
	}
	if detail, problem := s.Status(5); !strings.HasPrefix(detail, "2 samples, 0 datagrams sent, 0 failed, 1 flows cached") || problem != "" {
		t.Errorf("status: %s %s", detail, problem)
	}
	s.LimitRows(func(r limits.Row) {
		if r.Used != 1 {
			t.Errorf("limit row %+v", r)
		}
	})
	stop()
	if n, err = ipfix.Read(b); err != nil {
		t.Fatal(err)
	}
	d := flowexporttest.NewDecoder()
	if _, records, err := d.Message(b[:n]); err != nil || len(records) != 1 || be.Uint64(records[0]["2"]) != 2 || records[0]["136"][0] != endForced {
		t.Errorf("IPFIX: %v %v", records, err)
	}
	<-ended
	if s.flows != 0 {
		t.Errorf("%d flows are counted", s.flows)
	}
}

// If a collector refuses messages, the status of the exporter has the reason. Other collectors get their
// messages.
func TestCollectorProblems(t *testing.T) {
	gone, target := listen(t)
	gone.Close()
	there, good := listen(t)
	s := New()
	s.Set(map[uint32]*Config{5: {Targets: []netip.AddrPort{target, good}}})
	e := s.exporters[5]
	problem := ""
	for end := time.Now().Add(time.Minute); !strings.Contains(problem, "collector "+target.String()+": connection refused"); {
		if time.Now().After(end) {
			t.Fatalf("the exporter's problem is %q", problem)
		}
		e.send(noon)([]byte("message"))
		_, problem = s.Status(5)
	}
	b := make([]byte, 10)
	if n, err := there.Read(b); err != nil || string(b[:n]) != "message" || e.collectors[1].failed != 0 {
		t.Errorf("the other collector gets %q, %v: %+v", b[:n], err, e.collectors[1])
	}
	e.send(noon)(make([]byte, 1<<17))
	if c := e.collectors[1]; c.failed != 1 || !strings.Contains(c.problem, "message too long") {
		t.Errorf("after a message that no datagram can have: %+v", c)
	}
	e.send(noon)(nil)
	e.send(noon)(nil)
	if c := e.collectors[1]; c.failed != 1 || c.problem != "" {
		t.Errorf("after further messages: %+v", c)
	}
	s.Set(nil)
}
