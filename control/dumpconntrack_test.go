// SPDX-License-Identifier: Apache-2.0

package control

import (
	"net/http/httptest"
	"sync"
	"testing"

	"weft/control/workers/workertest"
	"weft/internal/waitfor"
)

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

// A client that does not read its dump, such as a pager, delays no other client.
func TestDumpOfConnectionsHoldsNothing(t *testing.T) {
	f := newFakes(t)
	workertest.Connect(t, f.d.pipeline.Workers().Connections(), 1000) // more than the buffers on the way to the client hold
	c := stuckClient{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.d.handler().ServeHTTP(c, byRoot("GET", "/v1/conntrack?json=true", nil))
	}()
	<-c.writing
	goOn := sync.OnceFunc(func() { close(c.reads) })
	defer goOn()
	changed := make(chan struct{})
	go func() { // this needs only the pipeline's lock, which the dump must not hold
		defer close(changed)
		tx := f.d.configuration.Begin()
		defer tx.Commit()
		f.d.pipeline.SetView(tx, f.d.pipeline.View())
	}()
	waitfor.True(t, "a change while the client does not read", func() bool {
		select {
		case <-changed:
			return true
		default:
			return false
		}
	})
	goOn()
	<-done
	if n := c.Body.Len(); n < 1000*100 {
		t.Errorf("%d bytes of a thousand connections", n)
	}
}
