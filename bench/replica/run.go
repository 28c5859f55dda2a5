// SPDX-License-Identifier: Apache-2.0

package replica

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Config is the configuration of one member: a replica or the client.
type Config struct {
	// Member is the number of the replica, 0 to Replicas-1, or Client. Replica 0 is
	// the leader.
	Member int
	// Addresses has the IPv4 addresses of the replicas in order, followed by the
	// client's.
	Addresses []netip.Addr
	// Port is the path of a vhost-user socket, to which the replica or client attaches as a guest. If
	// it is empty, the replica or client uses a UDP socket.
	Port string
	// Busy makes the replica or client poll its socket or its ring without sleeping, for the lowest
	// latency.
	Busy bool
	// Requests is the number of measured requests. Warmup is the number of unmeasured
	// requests before them.
	Requests, Warmup uint64
	// Window is the number of requests that the client keeps in flight.
	Window int
	// Hold, if not nil, delays the client. When all replicas have answered, the client waits for a
	// line from Hold before it sends its first request.
	Hold io.Reader `json:"-"`
}

// Check returns an error that names the first invalid field of the configuration.
func (c *Config) Check() error {
	if c.Member < 0 || c.Member > Client {
		return fmt.Errorf("member %d; expected 0 to %d or client", c.Member, Replicas-1)
	}
	if len(c.Addresses) != Replicas+1 {
		return fmt.Errorf("%d addresses; expected %d: of the replicas, then of the client", len(c.Addresses), Replicas+1)
	}
	for i, a := range c.Addresses {
		if !a.Is4() {
			return fmt.Errorf("address %s; expected one of IPv4", a)
		}
		for _, b := range c.Addresses[:i] {
			if a == b {
				return fmt.Errorf("address %s twice", a)
			}
		}
	}
	if c.Member == Client && (c.Requests < 1 || c.Window < 1 || c.Requests+c.Warmup > maxRequests || c.Requests > maxRequests || c.Window > 4096) {
		return fmt.Errorf("%d requests after %d, %d at a time; expected 1 to %d in all, 1 to 4096 at a time", c.Requests, c.Warmup, c.Window, maxRequests)
	}
	return nil
}

func (c *Config) open() (carrier, error) {
	if c.Port != "" {
		return openGuest(c.Port, c.Member, c.Addresses)
	}
	return openSocket(c.Member, c.Addresses)
}

// tickEvery is the interval at which replicas and the client check which messages they must send again.
const tickEvery = 5 * time.Millisecond

// silence is the time without progress after which the client gives up.
const silence = 10 * time.Second

// member runs a replica or the client: it receives, handles and sends messages.
type member struct {
	carrier   carrier
	start     time.Time
	wait      time.Duration // longest wait in carrier.receive
	envelopes []envelope
	buf       [messageSize]byte
	next      time.Duration // time of the next tick
}

func newMember(c *Config, carrier carrier) *member {
	m := &member{carrier: carrier, start: time.Now(), wait: tickEvery}
	if c.Busy {
		m.wait = 0
	}
	return m
}

func (m *member) clock() time.Duration { return time.Since(m.start) }

func (m *member) post() error {
	for i := range m.envelopes {
		if err := m.carrier.send(m.envelopes[i].to, m.buf[:m.envelopes[i].m.encode(m.buf[:])]); err != nil {
			return err
		}
	}
	m.envelopes = m.envelopes[:0]
	m.carrier.flush()
	return nil
}

func (m *member) turn(handle func(*Message, time.Duration), tick func(time.Duration)) error {
	datagrams, err := m.carrier.receive(m.wait)
	if err != nil {
		return err
	}
	at := m.clock()
	for _, d := range datagrams {
		if msg, err := decode(d); err == nil { // other datagrams than messages are ignored
			handle(&msg, at)
		}
	}
	if at >= m.next {
		m.next = at + tickEvery
		tick(at)
	}
	return m.post()
}

// RunReplica runs the replica with number c.Member until the client stops it or ctx
// ends.
func RunReplica(ctx context.Context, c *Config) error {
	carrier, err := c.open()
	if err != nil {
		return err
	}
	defer carrier.close()
	n := newNode(c.Member)
	m := newMember(c, carrier)
	var user, system time.Duration
	began, stopped := false, false
	handle := func(msg *Message, now time.Duration) {
		switch msg.Kind {
		case query:
			u, s := usage()
			entries, digest := n.state()
			m.envelopes = append(m.envelopes, n.envelope(Client, Message{Kind: status, Index: entries, Digest: digest,
				User: (u - user).Nanoseconds(), System: (s - system).Nanoseconds()}))
		case stop:
			stopped = true
		default:
			if !began {
				began = true
				user, system = usage()
			}
			m.envelopes = n.receive(msg, now, m.envelopes)
		}
	}
	for !stopped && ctx.Err() == nil {
		if err := m.turn(handle, func(now time.Duration) { m.envelopes = n.tick(now, m.envelopes) }); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// RunClient runs the client until all replicas have all log entries, and returns the report of
// the measurement.
func RunClient(ctx context.Context, c *Config) (*Report, error) {
	carrier, err := c.open()
	if err != nil {
		return nil, err
	}
	defer carrier.close()
	a := newAsker(c.Requests, c.Warmup, c.Window)
	m := newMember(c, carrier)
	if err := m.meet(ctx); err != nil {
		return nil, err
	}
	if c.Hold != nil {
		if _, err := bufio.NewReader(c.Hold).ReadString('\n'); err != nil {
			return nil, fmt.Errorf("held: %w", err)
		}
	}
	user, system := usage()
	seen, since := uint64(0), m.clock()
	for !a.finished() {
		m.envelopes = a.ask(m.clock(), m.envelopes)
		if err := m.post(); err != nil {
			return nil, err
		}
		err := m.turn(a.receive, func(now time.Duration) { m.envelopes = a.tick(now, m.envelopes) })
		if a.replied > seen {
			seen, since = a.replied, m.clock()
		}
		switch {
		case err != nil:
			return nil, err
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case m.clock()-since > silence:
			return nil, fmt.Errorf("%d of %d requests have a reply, and no further one for %s", a.replied, a.requests, silence)
		}
	}
	u, s := usage()
	all, err := m.ask(ctx, a.requests)
	if err != nil {
		return nil, err
	}
	r := newReport(c, a, all)
	r.Members[Client] = CPU{User: (u - user).Seconds(), System: (s - system).Seconds()}
	return r, nil
}

func (m *member) meet(ctx context.Context) error {
	_, err := m.poll(ctx, func(*Message) bool { return true })
	return err
}

// ask waits until all replicas have equal logs with the given number of entries. It
// then stops the replicas and returns their status messages.
func (m *member) ask(ctx context.Context, entries uint64) ([Replicas]Message, error) {
	all, err := m.poll(ctx, func(msg *Message) bool { return msg.Index == entries })
	if err != nil {
		return all, err
	}
	for i := range all {
		if all[i].Digest != all[0].Digest {
			return all, fmt.Errorf("the logs of replicas 0 and %d differ", i)
		}
		m.envelopes = append(m.envelopes, envelope{i, Message{Kind: stop, From: Client}})
	}
	return all, m.post()
}

func (m *member) poll(ctx context.Context, selects func(*Message) bool) (messages [Replicas]Message, err error) {
	var have [Replicas]bool
	missing := Replicas
	m.next = 0
	for start := m.clock(); missing > 0; {
		err := m.turn(func(msg *Message, _ time.Duration) {
			if from := int(msg.From); msg.Kind == status && from < Replicas && !have[from] && selects(msg) {
				messages[from], have[from] = *msg, true
				missing--
			}
		}, func(time.Duration) {
			for i := range have {
				if !have[i] {
					m.envelopes = append(m.envelopes, envelope{i, Message{Kind: query, From: Client}})
				}
			}
		})
		switch {
		case err != nil:
			return messages, err
		case ctx.Err() != nil:
			return messages, ctx.Err()
		case m.clock()-start > silence:
			for i := range have {
				if !have[i] {
					return messages, fmt.Errorf("replica %d does not answer, or not with all entries, for %s", i, silence)
				}
			}
		}
	}
	return messages, nil
}

func usage() (user, system time.Duration) {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0, 0
	}
	return time.Duration(r.Utime.Nano()), time.Duration(r.Stime.Nano())
}
