// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

// copySink is a Sink that keeps all objects, and checks that Follow obeys the rules of
// Sink.
type copySink struct {
	mu       sync.Mutex
	objects  map[objectKey]Object
	revision int64
	resets   int
	ports    map[int]bool // numbers of ports that the copy has had
	wrong    []string
}

func (c *copySink) caughtUp(name string, revision int64) {
	if revision <= c.revision {
		c.wrong = append(c.wrong, fmt.Sprintf("%s %d after revision %d", name, revision, c.revision))
	}
	c.revision = revision
}

func (c *copySink) Reset(revision int64, objects []Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caughtUp("Reset", revision)
	c.resets++
	c.objects = map[objectKey]Object{}
	c.take(objects)
}

func (c *copySink) Change(revision int64, objects []Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caughtUp("Change", revision)
	seen := map[objectKey]bool{}
	for _, o := range objects {
		if k := (objectKey{o.Kind, o.ID}); seen[k] {
			c.wrong = append(c.wrong, fmt.Sprint(k, " is twice in one change"))
		} else {
			seen[k] = true
		}
		if o.Revision > revision {
			c.wrong = append(c.wrong, fmt.Sprint(o.ID, " is of a later revision"))
		}
	}
	c.take(objects)
}

func (c *copySink) take(objects []Object) {
	ports := 0
	for _, o := range objects {
		if k := (objectKey{o.Kind, o.ID}); o.Message == nil {
			delete(c.objects, k)
		} else {
			c.objects[k] = o
		}
	}
	for k := range c.objects {
		if k.kind == KindPort {
			ports++
		}
		if _, ok := c.objects[objectKey{KindPort, k.id}]; k.kind == KindBind && !ok {
			c.wrong = append(c.wrong, "a binding without its port: "+k.id)
		}
	}
	c.ports[ports] = true
}

func (c *copySink) Progress(revision int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.caughtUp("Progress", revision)
}

func (c *copySink) wait(t testing.TB, ok func(map[objectKey]Object) bool) map[objectKey]Object {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		c.mu.Lock()
		if ok(c.objects) {
			defer c.mu.Unlock()
			for _, w := range c.wrong {
				t.Error(w)
			}
			return maps.Clone(c.objects)
		}
		if time.Now().After(end) {
			t.Errorf("the sink stays at revision %d with %d objects; wrong: %q", c.revision, len(c.objects), c.wrong)
			c.mu.Unlock()
			t.FailNow()
		}
		c.mu.Unlock()
	}
}

func (c *copySink) until(t testing.TB, revision int64) map[objectKey]Object {
	t.Helper()
	return c.wait(t, func(map[objectKey]Object) bool { return c.revision >= revision })
}

func follow(t testing.TB, s *Store) *copySink {
	c := &copySink{objects: map[objectKey]Object{}, ports: map[int]bool{}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Follow(ctx, c) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Follow returned %v", err)
		}
	})
	return c
}

func wantCopy(t testing.TB, s *Store, objects map[objectKey]Object) {
	t.Helper()
	r, err := s.client.Get(t.Context(), Prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, kv := range r.Kvs {
		o, object, err := decode(kv.Key, kv.Value, false, kv.ModRevision)
		if err != nil || !object {
			continue
		}
		n++
		if got := objects[objectKey{o.Kind, o.ID}]; !proto.Equal(got.Message, o.Message) || got.Revision != o.Revision {
			t.Errorf("%s: the sink has %v, stored is %v", kv.Key, got, o)
		}
	}
	if n != len(objects) {
		t.Errorf("the sink has %d objects, stored are %d", len(objects), n)
	}
}

func TestFollow(t *testing.T) {
	s := testMember(t).Store()
	apply(t, s, append(manyPorts(600), setHost("h1", 1))...)
	c := follow(t, s)
	c.wait(t, func(m map[objectKey]Object) bool { return len(m) == 604 })
	generation := bind(t, s, bindTo("port1", "h1", 1, 0))
	got := c.until(t, generation)
	if o := got[objectKey{KindBind, "port1"}]; o.Revision != generation || o.Message.(*wire.Bind).Host != "h1" {
		t.Errorf("the sink has %+v, expected generation %d", o, generation)
	}
	revision := apply(t, s, deletePort("port1"), setPort(port("new", "net0", 5000)))
	wantCopy(t, s, c.until(t, revision))
	// A request without changes also increases the revision.
	wantCopy(t, s, c.until(t, apply(t, s, setHost("h1", 1))))
	if c.resets != 1 {
		t.Errorf("%d resets", c.resets)
	}
}

// A sink gets the objects of a large request all at once. Bindings of other ports
// arrive in the meantime.
func TestFollowSeesLargeRequestsAtOnce(t *testing.T) {
	e := testMember(t)
	s := New(e.Client(), WithLimits(64, DefaultBytes))
	apply(t, s, setNet("old", 9999), setPort(port("p0", "old", 999_999)), setHost("h1", 1), setHost("h2", 2))
	c := follow(t, s)
	stop := make(chan struct{})
	stopped := make(chan int)
	go func() {
		n := 0
		var last int64
		for ; ; n++ {
			select {
			case <-stop:
				stopped <- n
				return
			default:
				r := s.Bind(t.Context(), []BindRequest{bindTo("p0", fmt.Sprint("h", n%2+1), byte(n%2+1), last), bindTo("port1", "h1", 1, 0)})
				if last = r[0].Generation; r[0].Err != nil {
					t.Error(r[0].Err)
				}
			}
		}
	}()
	wantCopyAfter := apply(t, s, manyPorts(1000)...)
	late := follow(t, s)
	close(stop)
	t.Logf("%d binds meanwhile", <-stopped)
	now := apply(t, s, setNet("last", 8888))
	for _, c := range []*copySink{c, late} {
		c.until(t, wantCopyAfter)
		wantCopy(t, s, c.until(t, now))
		for ports := range c.ports {
			if ports != 0 && ports != 1 && ports != 1001 {
				t.Errorf("the sink saw %d ports", ports)
			}
		}
	}
}

// If revisions were compacted before Follow has read them, the sink gets the
// difference.
func TestFollowAfterCompaction(t *testing.T) {
	s := testMember(t).Store()
	apply(t, s, manyPorts(20)...)
	c := &copySink{objects: map[objectKey]Object{}, ports: map[int]bool{}}
	f := &follower{store: s, sink: c}
	if err := f.list(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	r, err := s.client.Get(t.Context(), intentKey)
	if err != nil {
		t.Fatal(err)
	}
	f.cluster = r.Header.ClusterId
	apply(t, s, deletePort("port3"), deletePort("port4"))
	apply(t, s, setPort(port("port4", "net0", 7777)), setPort(port("new", "net0", 8888)))
	revision := apply(t, s, setNet("blue", 77))
	if _, err := s.client.Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		for {
			if err := f.follow(ctx); ctx.Err() != nil || !strings.Contains(err.Error(), "compacted") {
				done <- err
				return
			}
			f.relist = true
		}
	}()
	wantCopy(t, s, c.until(t, revision))
	wantCopy(t, s, c.until(t, apply(t, s, setNet("red", 78))))
	cancel()
	<-done
	if c.resets != 1 {
		t.Errorf("%d resets", c.resets)
	}
}

// Keys and values of other programs do not disturb Follow.
func TestFollowSkipsWhatIsNoObject(t *testing.T) {
	s := testMember(t).Store()
	for k, v := range map[string]string{netKey("x"): "\xff\xff", netKey("y"): "", Prefix + "later/x": "1", writerKey: "?"} {
		if _, err := s.client.Put(t.Context(), k, v); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.client.Delete(t.Context(), writerKey); err != nil {
		t.Fatal(err)
	}
	c := follow(t, s)
	c.until(t, apply(t, s, setNet("blue", 1)))
	r, err := s.client.Put(t.Context(), netKey("z"), "\xff")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.until(t, r.Header.Revision); len(got) != 1 || s.Undecodable() < 3 {
		t.Errorf("the sink has %v; %d skipped", got, s.Undecodable())
	}
}
