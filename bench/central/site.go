// SPDX-License-Identifier: Apache-2.0

package central

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"weft/api"
	"weft/central/pki"
	"weft/central/wire"
	"weft/e2e/lab"
)

// site has the real hosts. A real host is a process of weftd in a network namespace. Real hosts use
// the same weft-central servers as the simulated ones, but their guests exchange real frames.
//
//	driver, centrals: 10.100.255.1, bridge br0 ── u0 of host h0, 10.100.3.232
//	                                           ── u0 of host h1, ...
//	host h0: weftd --central, taps in the namespace of its guests
//
// A guest is a packet socket on a tap, in the process with the guests (see the type guests).
type site struct {
	lab        *lab.Lab
	dir        string
	nets       []*wire.Net // networks in which every real host has a port
	hosts      []*realHost
	calls      *rpc.Client // for calls of the process with the guests
	standalone *lab.Daemon // a weftd without --central; its memory is the reference for memory

	mu     sync.Mutex // guards spares
	spares []*tap     // taps whose ports the centrals do not know
}

// realHost is a host that runs weftd.
type realHost struct {
	n      int // index of the host in the model
	daemon *lab.Daemon
	api    *api.Client
	calls  *rpc.Client // for calls of the process with the guests
	guests *lab.Host   // namespace with the host's taps
	taps   int
	steady []*tap // taps of the permanent guests, one in each network; their ports are never deleted
}

const (
	// underlayIP is the address of this process and of the weft-central servers on the underlay. It is
	// in the same network as the addresses that endpointOf returns.
	underlayIP = "10.100.255.1"
	// underlayMAC is the address of the bridge. Without a fixed address, a bridge takes the lowest one
	// of its ports, so its address would change while hosts are added.
	underlayMAC  = "02:00:00:00:00:fe"
	underlayBits = "/16"
	underlayMTU  = 1600
	guestMTU     = 1500
	// siteNets is the largest number of networks in which real hosts have ports.
	siteNets = 4
	// sparesPerHost is the number of taps on each real host for the ports that churn adds and deletes.
	sparesPerHost = 20
	// realEvery is 5: churn places every fifth port on a real host.
	realEvery = 5
)

// prepareUnderlay creates the bridge that connects the real hosts with the weft-central servers. The
// bridge is in the namespace of this process.
func prepareUnderlay() error {
	for _, line := range []string{"link set lo up", "link add br0 address " + underlayMAC + " type bridge", "link set br0 mtu " + fmt.Sprint(underlayMTU),
		"address add " + underlayIP + underlayBits + " dev br0", "link set br0 up"} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}

// newSite starts the real hosts and adds their ports to their switches. The weft-central servers do not
// know these ports yet. run.load later declares those of the permanent guests, together with the
// simulated ports.
func newSite(o *Options, m *model, c *cluster) (s *site, err error) {
	defer lab.Caught(&err)
	lab.Binaries = o.Bin
	s = &site{lab: lab.New(lab.Program{}), dir: o.Dir, nets: m.nets[:min(siteNets, len(m.nets))]}
	s.calls = startGuests()
	var centrals []string
	for i := range c.nodes {
		centrals = append(centrals, c.nodes[i].address)
	}
	for n := m.simulated; n < len(m.hosts); n++ {
		h := &realHost{n: n, calls: s.calls, guests: s.lab.Host(fmt.Sprint("g", n))}
		certs := filepath.Join(o.Dir, hostName(n))
		c.ca.save(certs, hostName(n), pki.Host)
		host := s.wire(n)
		h.daemon = host.Weftd("--central", strings.Join(rotated(centrals, n), ","), "--central-certs", certs)
		h.daemon.Weft("add-port", "uplink", "type=af_packet", "dev=u0")
		h.api = lab.Must(api.NewClient(h.daemon.Socket))
		s.hosts = append(s.hosts, h)
	}
	s.standalone = s.lab.Host("alone").Weftd()
	var adding errgroup.Group
	for _, h := range s.hosts {
		adding.Go(func() error { return lab.Attempt(func() { h.addTaps(s, m) }) })
	}
	return s, adding.Wait()
}

// wire adds a namespace for the nth host that runs weftd, and connects it to br0.
func (s *site) wire(n int) *lab.Host {
	h := s.lab.Host(fmt.Sprint("h", n))
	dev := fmt.Sprint("p", n)
	for _, line := range []string{
		fmt.Sprintf("link add u0 mtu %d netns %s type veth peer name %s mtu %d", underlayMTU, h.NS, dev, underlayMTU),
		"link set " + dev + " master br0 up",
	} {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			s.lab.T.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
	h.Address("u0", endpointOf(n).String()+underlayBits)
	return h
}

// addTaps adds the taps of a host: one for a permanent guest in each network, and sparesPerHost taps
// for ports that come and go.
func (h *realHost) addTaps(s *site, m *model) {
	var added []*tap
	for k := range len(s.nets) + sparesPerHost {
		added = append(added, h.addTap(fmt.Sprintf("g%d-%d", h.n, k)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, net := range s.nets {
		t := added[k]
		lab.Check(t.declare(m.port(net, h.n)))
		m.add(t.port)
		h.steady = append(h.steady, t)
	}
	s.spares = append(s.spares, added[len(s.nets):]...)
}

// addTap adds a tap port to the host's switch and opens its other end.
func (h *realHost) addTap(name string) *tap {
	t := &tap{name: name, dev: fmt.Sprint("t", h.taps), host: h}
	h.taps++
	if _, err := h.api.AddPort(name, []string{"type=tap", "dev=" + t.dev, "netns=" + h.guests.NS, fmt.Sprint("mtu=", guestMTU)}); err != nil {
		lab.Check(fmt.Errorf("%s: add-port %s: %w", hostName(h.n), name, err))
	}
	lab.Check(t.open())
	return t
}

// ports returns the ports of the permanent guests.
func (s *site) ports() (list []*placed) {
	if s == nil {
		return
	}
	for _, h := range s.hosts {
		for _, t := range h.steady {
			list = append(list, t.port)
		}
	}
	return list
}

// end stops the real hosts and removes their namespaces.
func (s *site) end() {
	if s == nil {
		return
	}
	if s.calls != nil {
		_ = s.calls.Close()
	}
	s.lab.Close()
}

// connected returns the number of real hosts that are connected to a weft-central server.
func (s *site) connected() (n int) {
	if s == nil {
		return 0
	}
	for _, h := range s.hosts {
		if show, err := h.api.Show(); err == nil && show.Central != nil && show.Central.Connected {
			n++
		}
	}
	return n
}

// difference compares the addresses of each real switch with the model. It returns one line about the
// first difference, or "" if there is none.
func (s *site) difference(f *fleet) string {
	if s == nil {
		return ""
	}
	for _, h := range s.hosts {
		if difference := h.difference(f); difference != "" {
			return hostName(h.n) + " (weftd): " + difference
		}
	}
	return ""
}

func (h *realHost) difference(f *fleet) string {
	list, err := h.api.MACs()
	if err != nil {
		return err.Error()
	}
	type entry struct{ mac, place string }
	got := map[entry]bool{}
	for _, m := range list {
		if m.Declared {
			got[entry{m.MAC, cmp.Or(m.Remote, m.Port)}] = true
		}
	}
	f.mu.Lock()
	expected := f.model.expect(h.n)
	asked := false
	for _, p := range f.model.onHost[h.n] {
		asked = asked || f.model.onDemand(p.Net)
	}
	f.mu.Unlock()
	count := len(got)
	for k, a := range expected.Addresses {
		e := entry{macText(k.MAC), a.Port}
		if a.Port == "" {
			e.place = a.Remote.String()
		}
		if got[e] {
			count--
		} else if !asked || a.Port != "" {
			return fmt.Sprintf("%s is not at %s", e.mac, e.place)
		}
	}
	if count > 0 {
		return fmt.Sprintf("%d addresses that the host does not need", count)
	}
	return ""
}

func macText(n uint64) string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", byte(n>>40), byte(n>>32), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

// takeSpare removes a tap from s.spares and returns it. It returns nil if no spare tap is left.
func (s *site) takeSpare() *tap {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.spares) == 0 {
		return nil
	}
	t := s.spares[0]
	s.spares = s.spares[1:]
	return t
}

func (s *site) release(t *tap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spares = append(s.spares, t)
}

// peerOf returns the permanent guest in network k of a real host other than that of t. Successive
// values of "number" select the other hosts in turn.
func (s *site) peerOf(t *tap, k, number int) *tap {
	var others []*realHost
	for _, h := range s.hosts {
		if h != t.host {
			others = append(others, h)
		}
	}
	return others[number%len(others)].steady[k]
}

// memory returns how much resident memory the agent takes, in bytes: the memory of a real host's
// control process minus that of a control process without --central.
func (s *site) memory() float64 {
	now, _ := MemoryOf(s.hosts[0].daemon.Control().PID())
	alone, _ := MemoryOf(s.standalone.Control().PID())
	return float64(now - alone)
}

// restartControl restarts the control process of each real host, one after the other. The engines
// continue to forward frames meanwhile.
func (s *site) restartControl(ctx context.Context) (err error) {
	defer lab.Caught(&err)
	for _, h := range s.hosts {
		h.daemon.Control().Kill()
		h.daemon.Start()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// addressOf returns the IPv4 address of a port.
func addressOf(p *placed) netip.Addr {
	a, _ := netip.AddrFromSlice(p.Addresses[0])
	return a
}

// logs copies the logs of the real hosts into the directory of the run.
func (s *site) logs() {
	if s == nil {
		return
	}
	for _, h := range s.hosts {
		_ = os.WriteFile(filepath.Join(s.dir, hostName(h.n)+".log"), []byte(h.daemon.Control().Output()), 0o600)
	}
}
