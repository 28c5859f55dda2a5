// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// network carries messages between a client and three replicas in a single goroutine.
// It loses, duplicates and reorders messages at random.
type network struct {
	random *rand.Rand
	loss   int // probability of a loss in percent
	queue  []envelope
	nodes  [Replicas]*Node
	client *asker
	now    time.Duration
}

func newNetwork(seed uint64, loss, requests, window int) *network {
	w := &network{random: rand.New(rand.NewPCG(seed, 1)), loss: loss, client: newAsker(uint64(requests), 5, window)}
	for i := range w.nodes {
		w.nodes[i] = newNode(i)
	}
	return w
}

func (w *network) post(envelopes []envelope) {
	for _, e := range envelopes {
		if w.random.IntN(100) < w.loss {
			continue
		}
		w.queue = append(w.queue, e)
		if w.random.IntN(100) < w.loss {
			w.queue = append(w.queue, e)
		}
	}
}

func (w *network) step(t *testing.T) {
	w.now += time.Millisecond
	w.post(w.client.ask(w.now, nil))
	if len(w.queue) > 0 {
		i := w.random.IntN(len(w.queue))
		e := w.queue[i]
		w.queue[i] = w.queue[len(w.queue)-1]
		w.queue = w.queue[:len(w.queue)-1]
		var b [messageSize]byte
		m, err := decode(b[:e.m.encode(b[:])])
		if err != nil || m != e.m {
			t.Fatalf("%+v became %+v: %v", e.m, m, err)
		}
		if e.to == Client {
			w.client.receive(&m, w.now)
		} else {
			w.post(w.nodes[e.to].receive(&m, w.now, nil))
		}
	}
	w.post(w.client.tick(w.now, nil))
	w.post(w.nodes[0].tick(w.now, nil))
}

// checkAgreement checks a run over a faulty network: each log contains each request
// once, a majority has every answered request, and all logs are equal at the end.
func checkAgreement(t *testing.T, seed uint64, loss, requests, window int) {
	t.Helper()
	w := newNetwork(seed, loss, requests, window)
	all := uint64(requests + 5)
	for steps := 0; w.nodes[0].everywhere < all || !w.client.finished(); steps++ {
		if w.step(t); steps > 1_000_000 {
			t.Fatalf("no agreement: %d of %d requests have a reply, all replicas have %d entries", w.client.replied, all, w.nodes[0].everywhere)
		}
		for r, done := range w.client.completed {
			if done && w.holders(uint64(r)) < majority {
				t.Fatalf("request %d has a reply, but only %d replicas have it", r, w.holders(uint64(r)))
			}
		}
	}
	seen := map[uint64]bool{}
	for _, e := range w.nodes[0].log {
		if seen[e.request] {
			t.Errorf("request %d is twice in the log", e.request)
		}
		seen[e.request] = true
	}
	n, digest := w.nodes[0].state()
	for i, node := range w.nodes {
		if k, d := node.state(); k != all || k != n || d != digest {
			t.Errorf("replica %d: %d entries of digest %x; the leader %d of %x", i, k, d, n, digest)
		}
	}
	if w.client.times.TotalCount() != int64(requests) || len(seen) != int(all) {
		t.Errorf("%d times measured, %d requests in the log", w.client.times.TotalCount(), len(seen))
	}
}

func (w *network) holders(request uint64) (n int) {
	for _, node := range w.nodes {
		for _, e := range node.log {
			if e.valid && e.request == request {
				n++
			}
		}
	}
	return n
}

func TestAgreement(t *testing.T) {
	for seed := range uint64(20) {
		checkAgreement(t, seed, int(seed), 30, 1+int(seed)%7)
	}
}

func FuzzAgreement(f *testing.F) {
	f.Add(uint64(1), uint8(10), uint8(20), uint8(3))
	f.Fuzz(func(t *testing.T, seed uint64, loss, requests, window uint8) {
		checkAgreement(t, seed, int(loss%50), 1+int(requests%40), 1+int(window%10))
	})
}

func FuzzDecode(f *testing.F) {
	var b [messageSize]byte
	m := Message{Kind: appendE, From: 1, Index: 2, Request: 3}
	f.Add(b[:m.encode(b[:])])
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decode(data)
		if err != nil {
			return
		}
		var b [messageSize]byte
		if n := m.encode(b[:]); string(b[:n]) != string(data[:n]) {
			t.Errorf("%x became %x", data, b[:n])
		}
		n := newNode(int(m.From % Replicas))
		n.receive(&m, 0, nil)
	})
}

// Three replicas and a client agree on all requests over UDP sockets of the kernel.
func TestOverSockets(t *testing.T) {
	var c Config
	for _, a := range []string{"127.7.0.1", "127.7.0.2", "127.7.0.3", "127.7.0.4"} {
		c.Addresses = append(c.Addresses, netip.MustParseAddr(a))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	errs := make(chan error, Replicas)
	for i := range Replicas {
		own := c
		own.Member = i
		go func() { errs <- RunReplica(ctx, &own) }()
	}
	c.Member, c.Requests, c.Warmup, c.Window = Client, 500, 50, 4
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	r, err := RunClient(ctx, &c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests != 500 || r.Rate <= 0 || r.P50 <= 0 || r.Max < r.P99 {
		t.Errorf("%+v", r)
	}
	for range Replicas {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// The library gopacket decodes a guest's frame as UDP, with a valid IPv4 checksum.
func TestGuestFrames(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	g := &guest{own: a, heads: [][headers]byte{head(a, b)}, envelopes: make([][]byte, batch)}
	if err := g.send(0, []byte("hello, replica")); err != nil {
		t.Fatal(err)
	}
	p := gopacket.NewPacket(g.envelopes[0], layers.LayerTypeEthernet, gopacket.Default)
	udp, _ := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	ip, _ := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if udp == nil || ip.DstIP.String() != b.String() || string(udp.Payload) != "hello, replica" || udp.DstPort != udpPort {
		t.Fatal(p)
	}
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(g.envelopes[0][i])<<8 + uint32(g.envelopes[0][i+1])
	}
	if sum = sum&0xffff + sum>>16; sum != 0xffff {
		t.Errorf("checksum %x", sum)
	}
	to := &guest{own: b}
	if got := to.accept(append(g.envelopes[0], make([]byte, 4)...)); string(got) != "hello, replica" { // frame with padding behind the datagram
		t.Errorf("%q", got)
	}
	if other := (&guest{own: a}).accept(g.envelopes[0]); other != nil {
		t.Errorf("accepted what is for %s", b)
	}
}

func TestConfigRefuses(t *testing.T) {
	address := netip.MustParseAddr
	four := []netip.Addr{address("10.0.0.1"), address("10.0.0.2"), address("10.0.0.3"), address("10.0.0.4")}
	for _, c := range []Config{
		{Member: 4, Addresses: four}, {Member: -1, Addresses: four}, {Addresses: four[:3]}, {Member: Client, Addresses: four},
		{Addresses: append(four[:3:3], four[0])}, {Addresses: append(four[:3:3], address("::1"))},
		{Member: Client, Addresses: four, Requests: maxRequests + 1, Window: 1}, {Member: Client, Addresses: four, Requests: 1, Window: 5000},
	} {
		if c.Check() == nil {
			t.Errorf("%+v is taken", c)
		}
	}
}
