// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// memberEnv is an environment variable. If it is set, the test binary runs as the
// member of etcd with this name and runs no tests.
const memberEnv = "WEFT_TEST_MEMBER"

func TestMain(m *testing.M) {
	if name := os.Getenv(memberEnv); name != "" {
		runMember(name)
		return
	}
	os.Exit(m.Run())
}

const testCluster = "a=unix://peer:1,b=unix://peer:2,c=unix://peer:3"

// runMember runs a member of etcd in a process of its own, with unix sockets in the
// current directory. The member ends when its standard input is closed, at the latest
// when the test process ends.
func runMember(name string) {
	n := int(name[0]-'a') + 1
	e, err := Embed(context.Background(), EmbedConfig{
		Name: name, Dir: name, PeerURL: fmt.Sprint("unix://peer:", n), ClientURL: fmt.Sprint("unix://client:", n), Cluster: testCluster,
	})
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	e.Close()
}

// cluster is an etcd cluster of three members. Each member is a process.
type cluster struct {
	t       testing.TB
	members [3]*exec.Cmd
	clients [3]*clientv3.Client // one client for each member, which connects only to this member
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	t.Chdir(t.TempDir())
	c := &cluster{t: t}
	for i := range c.members {
		c.start(i)
	}
	for i := range c.clients {
		client, err := Dial([]string{fmt.Sprint("unix://client:", i+1)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.clients[i] = client
		t.Cleanup(func() { _ = client.Close() })
	}
	return c
}

func (c *cluster) start(i int) {
	c.t.Helper()
	name := string(rune('a' + i))
	_ = os.Remove(fmt.Sprint("peer:", i+1))
	_ = os.Remove(fmt.Sprint("client:", i+1))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberEnv+"="+name)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.members[i] = cmd
	c.t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// client returns a client that knows all members, so that requests succeed although one
// member is dead.
func (c *cluster) client() *clientv3.Client {
	c.t.Helper()
	client, err := Dial([]string{"unix://client:1", "unix://client:2", "unix://client:3"}, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// leader waits until the cluster has a leader, and returns the leader's index.
func (c *cluster) leader() int {
	c.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for i, client := range c.clients {
			ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
			status, err := client.Status(ctx, fmt.Sprint("unix://client:", i+1))
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				return i
			}
		}
	}
	c.t.Fatal("no leader")
	return 0
}

func (c *cluster) signal(i int, s syscall.Signal) {
	c.t.Helper()
	if err := c.members[i].Process.Signal(s); err != nil {
		c.t.Fatal(err)
	}
	switch s {
	case syscall.SIGKILL:
		_ = c.members[i].Wait()
	case syscall.SIGSTOP: // on a busy machine the process continues for a while after the signal
		var stopped syscall.WaitStatus
		if _, err := syscall.Wait4(c.members[i].Process.Pid, &stopped, syscall.WUNTRACED, nil); err != nil {
			c.t.Fatal(err)
		}
	}
}

// history records the acknowledged writes of several concurrent workers. After the
// workers have ended, it compares them with the contents of the store.
type history struct {
	t    *testing.T
	stop chan struct{}

	mu sync.Mutex
	// host of each acknowledged binding; the keys are the port's id and the generation
	binds map[string]map[int64]string
	// last acknowledged state of each port that only one worker changes; nil: the port
	// was deleted
	mine map[string]proto.Message
	acks int
}

const (
	workers    = 4
	sharedSize = 6 // number of ports that all workers bind
)

// work changes and binds random ports until the test stops it. Only this worker
// changes its own ports, so their last acknowledged state must be in the store. All
// workers bind the shared ports to different hosts.
func (h *history) work(s *Store, number int, seed uint64) {
	r := rand.New(rand.NewPCG(seed, uint64(number)))
	for {
		select {
		case <-h.stop:
			return
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		switch r.IntN(4) {
		case 0, 1:
			h.change(ctx, s, number, r)
		default:
			h.bindShared(ctx, s, number, r)
		}
		cancel()
	}
}

// change sets or deletes one of the worker's own ports. It may choose a MAC and IP
// address that a port of another worker has.
func (h *history) change(ctx context.Context, s *Store, number int, r *rand.Rand) {
	id := fmt.Sprintf("own%d-%d", number, r.IntN(5))
	p := port(id, "net0", 100_000+r.IntN(12))
	c := setPort(p)
	h.mu.Lock()
	known := h.mine[id] != nil
	h.mu.Unlock()
	if known && r.IntN(3) == 0 {
		p, c = nil, deletePort(id)
	}
	_, err := s.Apply(ctx, &wire.ChangeRequest{Changes: []*wire.Change{c}})
	var refused *Refused
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.As(err, &refused): // refused because another port has the address; nothing has changed
	case err != nil:
		h.t.Errorf("%s: %v", id, err)
	default:
		h.acks++
		h.mine[id] = nil
		if p != nil {
			h.mine[id] = p
		}
	}
}

func (h *history) bindShared(ctx context.Context, s *Store, number int, r *rand.Rand) {
	id := fmt.Sprint("port", r.IntN(sharedSize))
	host := fmt.Sprint("h", number)
	got, err := s.client.Get(ctx, bindKey(id))
	if err != nil {
		return // no effect
	}
	expected := int64(0)
	if len(got.Kvs) > 0 {
		expected = got.Kvs[0].ModRevision
	}
	result := s.Bind(ctx, []BindRequest{bindTo(id, host, byte(number), expected)})[0]
	var refused *Refused
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case errors.As(result.Err, &refused): // refused because another host was bound first
	case result.Err != nil:
		h.t.Errorf("%s: %v", id, result.Err)
	default:
		h.acks++
		if h.binds[id] == nil {
			h.binds[id] = map[int64]string{}
		}
		if other := h.binds[id][result.Generation]; other != "" && other != host {
			h.t.Errorf("port %s is bound to %s and %s at generation %d", id, other, host, result.Generation)
		}
		h.binds[id][result.Generation] = host
	}
}

// check compares the acknowledged writes with the contents of the store.
func (h *history) check(s *Store) {
	wantGuards(h.t, s)
	keys := dump(h.t, s)
	for id, want := range h.mine {
		var got wire.Port
		if err := proto.Unmarshal([]byte(keys[portKey(id)]), &got); err != nil {
			h.t.Error(err)
		}
		if _, there := keys[portKey(id)]; there != (want != nil) || there && !proto.Equal(&got, want) {
			h.t.Errorf("%s is %v, acknowledged was %v", id, &got, want)
		}
	}
	for id, generations := range h.binds {
		newest := int64(0)
		for g := range generations {
			newest = max(newest, g)
		}
		r, err := s.client.Get(h.t.Context(), bindKey(id))
		if err != nil || len(r.Kvs) == 0 {
			h.t.Errorf("the binding of %s is lost: %v", id, err)
			continue
		}
		var b wire.Bind
		if err := proto.Unmarshal(r.Kvs[0].Value, &b); err != nil {
			h.t.Error(err)
		}
		// The stored binding may be newer than the last acknowledged one, because the
		// answer to a binding may be lost.
		if stored := r.Kvs[0].ModRevision; stored < newest || stored == newest && b.Host != generations[newest] {
			h.t.Errorf("%s is bound to %s at %d, acknowledged was %s at %d", id, b.Host, stored, generations[newest], newest)
		}
	}
	for k := range keys {
		if strings.HasPrefix(k, journalPrefix) || k == writerKey {
			h.t.Errorf("%s is left", k)
		}
	}
}

// The test kills or stops the leader several times while four stores change ports and
// bind them. No acknowledged write is lost, no two objects get the same unique value,
// such as a MAC address, and no two hosts have the same port at the same generation.
// A follower ends with the contents of the store.
func TestHistoryWithFaults(t *testing.T) {
	c := startCluster(t)
	s := New(c.client(), WithLimits(embeddedOps, embeddedBytes))
	changes := manyPorts(sharedSize)
	for i := range workers {
		changes = append(changes, setHost(fmt.Sprint("h", i), byte(i+1)))
	}
	apply(t, s, changes...)
	sink := follow(t, s)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := &history{t: t, stop: make(chan struct{}), binds: map[string]map[int64]string{}, mine: map[string]proto.Message{}}
	var done sync.WaitGroup
	for i := range workers {
		// A small limit of operations makes some requests larger than a transaction,
		// so that they use the journal.
		limits := []Option{WithLimits(embeddedOps, embeddedBytes), WithLimits(7, embeddedBytes)}[i%2]
		done.Go(func() { h.work(New(c.client(), limits), i, seed) })
	}
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		time.Sleep(1500 * time.Millisecond)
		leader := c.leader()
		fault, name := syscall.SIGKILL, "SIGKILL"
		if round%2 == 1 {
			fault, name = syscall.SIGSTOP, "SIGSTOP"
		}
		c.signal(leader, fault)
		start := time.Now()
		// Like a central, this store sends its requests to only one member of etcd.
		near := New(c.clients[(leader+1)%len(c.clients)])
		if _, err := near.Apply(t.Context(), &wire.ChangeRequest{Changes: []*wire.Change{setHost("h0", byte(100+round))}}); err != nil {
			t.Error(err)
		}
		t.Logf("%s of the leader: the next write took %s", name, time.Since(start).Round(time.Millisecond))
		if fault == syscall.SIGKILL {
			c.start(leader)
		} else {
			time.Sleep(time.Second)
			c.signal(leader, syscall.SIGCONT)
		}
	}
	close(h.stop)
	done.Wait()
	t.Logf("%d acknowledged writes", h.acks)
	if h.acks < 20 {
		t.Errorf("only %d writes: the test tests nothing", h.acks)
	}
	revision := apply(t, s, setNet("last", 7777))
	h.check(s)
	wantCopy(t, s, sink.until(t, revision))
}

// If a member of a separate etcd hangs, only the first request of a store waits for it.
// Later requests go to the other members.
func TestMemberHangs(t *testing.T) {
	c := startCluster(t)
	s := New(c.client())
	apply(t, s, setHost("h1", 1))
	for round := range 2 {
		member := s.members.current()
		hung := member % len(c.members)
		if round == 1 {
			s.members.leave(member) // stop the leader, which may be another member
			hung = c.leader()
			for s.members.current()%len(c.members) != hung {
				s.members.leave(s.members.current())
			}
			member = s.members.current()
		}
		c.signal(hung, syscall.SIGSTOP)
		start := time.Now()
		apply(t, s, setHost("h1", byte(round+2)))
		t.Logf("SIGSTOP of the member in use (round 1: the leader): the next write took %s", time.Since(start).Round(time.Millisecond))
		now := s.members.current()
		if now == member || now%len(c.members) == hung {
			t.Errorf("the store still uses member %d", hung)
		}
		for range 5 {
			apply(t, s, setHost("h1", byte(round+2)))
		}
		if s.members.current() != now {
			t.Error("the store has changed its member again")
		}
		c.signal(hung, syscall.SIGCONT)
	}
}

// A store commits a large request and dies: other stores complete the request. A store
// that dies before the commit leaves no effect.
func TestJournalAfterCrash(t *testing.T) {
	e := testMember(t)
	s := New(e.Client(), WithLimits(16, DefaultBytes))
	for _, committed := range []bool{true, false} {
		a := &applying{store: s, id: fmt.Sprint("crash-", committed), objects: mustCollect(t, manyPorts(30))}
		w, err := a.lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v, _, err := a.prepare(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		chunks := s.cut(v.changes())
		if committed {
			if err := a.writeChunks(t.Context(), w, chunks); err != nil {
				t.Fatal(err)
			}
			if _, err := s.rollOnce(t.Context(), w, chunks); err != nil {
				t.Fatal(err)
			}
		}
		// A follower that starts now must wait until the large request has ended.
		sink := follow(t, e.Store())
		revision := apply(t, e.Store(), setNet("other", 99))
		wantGuards(t, s)
		wantCopy(t, s, sink.until(t, revision))
		keys := dump(t, s)
		if _, there := keys[portKey("port29")]; there != committed {
			t.Errorf("committed %v: port29 is there: %v", committed, there)
		}
		if _, there := keys[writerKey]; there {
			t.Error("the writer's key is left")
		}
		if !committed {
			if err := a.writeChunks(t.Context(), w, chunks); !errors.Is(err, errConflict) {
				t.Errorf("the given up writer goes on: %v", err)
			}
		}
		if committed {
			var gone []*wire.Change
			for _, c := range manyPorts(30) {
				if p := c.GetSetPort(); p != nil {
					gone = append(gone, deletePort(p.Id))
				}
			}
			apply(t, s, append(gone, deleteNet("net0"), deleteNet("other"))...)
		}
	}
}

// If a store dies while it prepares a large request, later requests still succeed, even
// if each of their clients gives up before the store's own time limit.
func TestGivenUpForImpatientClients(t *testing.T) {
	s := testMember(t).Store()
	dead := &applying{store: s, id: "dead", objects: mustCollect(t, manyPorts(3))}
	if _, err := dead.lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), givenUp/4)
		_, err := s.Apply(ctx, &wire.ChangeRequest{Id: "next", Changes: []*wire.Change{setNet("blue", 1)}})
		cancel()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// While a store prepares a large request, other stores can see that it is alive.
func TestPreparingShowsLife(t *testing.T) {
	s := testMember(t).Store()
	a := &applying{store: s, id: "slow"}
	w, err := a.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := w.mod
	err = s.showingLife(t.Context(), w, func() error {
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if now, err := s.readWriter(t.Context()); err != nil || now.mod > first {
				return err
			}
		}
		return errors.New("the key stays as it is")
	})
	if err != nil {
		t.Fatal(err)
	}
	if now, err := s.readWriter(t.Context()); err != nil || *now != *w {
		t.Errorf("the key has %+v, the store knows %+v, %v", now, w, err)
	}
}

func mustCollect(t *testing.T, changes []*wire.Change) []*target {
	t.Helper()
	objects, err := collect(changes)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// Another store can finish a large request whose store died, whatever kind of object the request changes.
func TestChunksOfAllKinds(t *testing.T) {
	changes := []change{{key: guardPrefix + "name/net/x", value: []byte("y")}}
	for i := range kinds {
		changes = append(changes, change{key: kinds[i].prefix + "x", value: []byte("y")}, change{key: kinds[i].prefix + "z", delete: true})
	}
	chunk, err := encodeChunk(changes)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeChunk(chunk); err != nil || len(got) != len(changes) {
		t.Errorf("%d of %d changes, %v", len(got), len(changes), err)
	}
	for _, key := range []string{intentKey, writerKey, requestKey("r"), journalPrefix + "t/1", "other"} {
		if chunk, err = encodeChunk([]change{{key: key, value: []byte("y")}}); err != nil {
			t.Fatal(err)
		}
		if _, err := decodeChunk(chunk); err == nil {
			t.Errorf("a chunk may write %q", key)
		}
	}
}

// Values in etcd may come from other versions of Weft or from other programs. The
// decoders accept or refuse every value and never crash.
func FuzzDecode(f *testing.F) {
	chunk, err := encodeChunk([]change{{key: netKey("x"), value: []byte("y")}, {key: portKey("p"), delete: true}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(netKey("x")), []byte("\n\x01x\x12\x01x\x18\x01"))
	f.Add([]byte(writerKey), []byte(`{"token":"T","request":"r","committed":true,"chunks":2,"next":1}`))
	f.Add([]byte("journal"), chunk)
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if o, object, err := decode(key, value, false, 1); err == nil && object {
			if o.Message == nil || o.ID == "" && len(value) > 0 && o.Kind == 0 {
				t.Errorf("%q: %+v", key, o)
			}
			_ = guards(o.Message)
			_ = references(o.Message)
		}
		if w, err := decodeWriter(value, 1); err == nil {
			if again, err := decodeWriter([]byte(w.encode()), 1); err != nil || *again != *w {
				t.Errorf("%+v becomes %+v, %v", w, again, err)
			}
		}
		changes, err := decodeChunk(value)
		if err != nil {
			return
		}
		for _, c := range changes {
			if !strings.HasPrefix(c.key, Prefix) || strings.HasPrefix(c.key, journalPrefix) || c.key == writerKey {
				t.Errorf("a chunk may write %q", c.key)
			}
		}
	})
}
