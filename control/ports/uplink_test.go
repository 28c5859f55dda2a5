// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"encoding/json"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/afpacket"
	"weft/control/pipeline"
	"weft/engine"
	"weft/internal/testnet"
)

// keepingEngine is an engine client that keeps the state that ports store in the engine.
type keepingEngine struct {
	noEngine
	kept map[string]*engine.Kept
}

func newKeepingEngine() *keepingEngine { return &keepingEngine{kept: map[string]*engine.Kept{}} }

func (e *keepingEngine) Client() Client { return e }

func (e *keepingEngine) Keep(key string, blob json.RawMessage, fds []int) error {
	_ = e.Forget(key)
	k := &engine.Kept{Request: engine.Request{Blob: blob}}
	e.kept[key] = k
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		k.FDs = append(k.FDs, dup)
	}
	return nil
}

func (e *keepingEngine) Forget(key string) error {
	if k := e.kept[key]; k != nil {
		k.CloseFDs()
		delete(e.kept, key)
	}
	return nil
}

// A veth offers no zero-copy, so an uplink on it uses packet sockets, and attaches no XDP program. The
// next control process takes over this choice and the sockets.
func TestUplinkChooses(t *testing.T) {
	n, other := testnet.New(t), testnet.New(t)
	testnet.Join(n, "u0", other, "u0")
	n.Do(func() {
		e := newKeepingEngine()
		newPort := func() *uplinkPort {
			return &uplinkPort{portContext: portContext{kind: kindUplink, values: map[string]string{"dev": "u0"},
				log: slog.New(slog.DiscardHandler), offload: new(pipeline.Pipeline), engine: e, held: func(uint32) error { return nil }}}
		}
		first := newPort()
		if err := first.open(nil); err != nil {
			t.Fatal(err)
		}
		defer first.close()
		const why = "the driver has no AF_XDP zero-copy"
		if s := first.status(); s.state != StateUp || s.mode != "packet" || !strings.HasPrefix(s.reason, why) {
			t.Fatalf("status %+v: want packet sockets, because %s", s, why)
		}
		if err := first.attach(false); err != nil {
			t.Fatal(err)
		}
		next := newPort()
		if err := next.open(e.kept[KeepKey(0)]); err != nil {
			t.Fatal(err)
		}
		defer next.close()
		if s := next.status(); s != first.status() {
			t.Errorf("status after a take-over %+v, before %+v", s, first.status())
		}
		broken := newPort()
		if err := broken.open(&engine.Kept{Request: engine.Request{Blob: []byte(`{"kind":"pigeon"}`)}}); err != nil {
			t.Errorf("a kept choice that cannot be read is not made again: %v", err)
		}
		broken.close()
		// If the kernel has stopped a ring of the port, the port's next sockets have no rings.
		first.noRing = afpacket.ErrStopped.Error()
		first.close()
		if err := first.open(nil); err != nil {
			t.Fatal(err)
		}
		if s := first.status(); !strings.Contains(s.reason, first.noRing) {
			t.Errorf("status %+v: want no ring, because %s", s, first.noRing)
		}
	})
}

// If a packet uplink is set up again, for example because its device was replaced, its new sockets get
// the same tunnel endpoints.
func TestPacketPortTakesEndpointsAgain(t *testing.T) {
	n, other := testnet.New(t), testnet.New(t)
	testnet.Join(n, "u0", other, "u0")
	n.Exec("ip", "addr", "add", "192.0.2.1/24", "dev", "u0")
	n.Do(func() {
		p := &packetPort{portContext: portContext{kind: kindPacket, values: map[string]string{"dev": "u0"},
			log: slog.New(slog.DiscardHandler), offload: new(pipeline.Pipeline), engine: newKeepingEngine(), held: func(uint32) error { return nil }}}
		defer p.close()
		endpoint := netip.MustParseAddrPort("192.0.2.1:4789")
		for range 2 {
			p.close()
			if err := p.open(nil); err != nil {
				t.Fatal(err)
			}
			p.network([]netip.AddrPort{endpoint})
			if c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(endpoint)); err == nil {
				c.Close()
				t.Fatal("the uplink has not taken the endpoint")
			}
		}
	})
}

// The next control process takes over the ingress program of a packet uplink. When the port is deleted,
// the engine forgets the program.
func TestPacketPortKeepsIngressProgram(t *testing.T) {
	n, other := testnet.New(t), testnet.New(t)
	testnet.Join(n, "u0", other, "u0")
	n.Exec("ip", "addr", "add", "192.0.2.1/24", "dev", "u0")
	n.Do(func() {
		e := newKeepingEngine()
		newPort := func() *packetPort {
			return &packetPort{portContext: portContext{kind: kindPacket, values: map[string]string{"dev": "u0"},
				log: slog.New(slog.DiscardHandler), offload: new(pipeline.Pipeline), engine: e, held: func(uint32) error { return nil }}}
		}
		p := newPort()
		if err := p.open(nil); err != nil {
			t.Fatal(err)
		}
		defer p.close()
		p.network([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4789")})
		if why := p.uplink.InStack(); why != "" {
			t.Skip("no ingress program: " + why)
		}
		device, extras := e.kept[KeepKey(0)], e.kept[ExtrasKey(0)]
		if extras == nil || len(extras.FDs) != 1 {
			t.Fatalf("kept %v, want the ingress program's link", extras)
		}
		device.FDs = append(device.FDs, extras.FDs...)
		delete(e.kept, ExtrasKey(0))
		next := newPort()
		if err := next.open(device); err != nil {
			t.Fatal(err)
		}
		delete(e.kept, KeepKey(0)) // the second uplink owns the descriptors now
		if len(next.uplink.IngressFDs()) != 1 {
			t.Error("the next control process lacks the ingress program")
		}
		if err := next.attach(false); err != nil {
			t.Fatal(err)
		}
		next.close()
		if len(e.kept) != 0 {
			t.Errorf("the engine keeps %v of a port that is closed", e.kept)
		}
	})
}

// cutEngine is an engine client that fails after the first call of Forget.
type cutEngine struct {
	*keepingEngine
	cut bool
}

func (e *cutEngine) Client() Client { return e }

func (e *cutEngine) Forget(key string) error {
	if e.cut {
		return engine.ErrGone
	}
	e.cut = true
	return e.keepingEngine.Forget(key)
}

// If control is killed while it closes a packet uplink, the engine does not keep the ingress program
// without the uplink's sockets.
func TestNoExtrasWithoutADevice(t *testing.T) {
	e := &cutEngine{keepingEngine: newKeepingEngine()}
	e.kept[KeepKey(0)], e.kept[ExtrasKey(0)] = &engine.Kept{}, &engine.Kept{}
	p := &packetPort{portContext: portContext{kind: kindPacket, log: slog.New(slog.DiscardHandler), offload: new(pipeline.Pipeline), engine: e}}
	p.close()
	if e.kept[KeepKey(0)] == nil || e.kept[ExtrasKey(0)] != nil {
		t.Errorf("the engine keeps %v, want the device only", e.kept)
	}
}
