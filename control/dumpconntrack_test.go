package control

import (
	"net/http/httptest"
	"sync"
	"testing"

	"weft/internal/waitfor"
)

// stuckClient is one that asks and does not read, once it has something to.
type stuckClient struct {
	*httptest.ResponseRecorder
	writing, reads chan struct{}
}

func (c stuckClient) Write(b []byte) (int, error) {
	if len(b) > 0 {
		select {
		case c.writing <- struct{}{}:
			<-c.reads
		case <-c.reads:
		}
	}
	return c.ResponseRecorder.Write(b)
}

// A client that does not read what it has asked for, a pager perhaps, has nobody else
// wait: not the misses either.
func TestDumpOfConnectionsHoldsNothing(t *testing.T) {
	f := newFakes(t)
	f.connect(1000) // more than fits into any buffer on the way
	c := stuckClient{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.d.handler().ServeHTTP(c, byRoot("GET", "/v1/conntrack?json=true", nil))
	}()
	<-c.writing
	goOn := sync.OnceFunc(func() { close(c.reads) })
	defer goOn()
	waitfor.True(t, "Daemon.mu is free while the client does not read", func() bool {
		free := f.d.pipeline.mu.TryLock()
		if free {
			f.d.pipeline.mu.Unlock()
		}
		return free
	})
	goOn()
	<-done
	if n := c.Body.Len(); n < 1000*100 {
		t.Errorf("%d bytes of a thousand connections", n)
	}
}
