// SPDX-License-Identifier: Apache-2.0

package control

import (
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/engine"
	"weft/internal/testnet"
)

// addTap adds a tap over the API in the background, and sends the result to the channel.
func (f *fakes) addTap(name string) <-chan error {
	f.t.Helper()
	space := testnet.New(f.t)
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		f.t.Fatal(err)
	}
	added := make(chan error, 1)
	go func() {
		_, err := client.AddPort(name, []string{"type=tap", "netns=" + space.Name})
		added <- err
	}()
	return added
}

// The addition of a port waits for an engine that is busy. A read-only request meanwhile gets an error
// with the reason of its delay.
func TestPortWaitsForBusyEngine(t *testing.T) {
	f := newFakes(t)
	began, answer := make(chan struct{}), make(chan struct{})
	busy := f.last()
	busy.Attaching = func(port uint32) {
		busy.Waiting.Store(&engine.Pending{Number: 1, Op: engine.OpAttach, Port: port, Since: time.Now().Add(-time.Hour)})
		close(began)
		<-answer
		busy.Waiting.Store(nil)
	}
	added := f.addTap("t1")
	<-began
	client, err := api.NewClient(f.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Show(); err == nil || !strings.Contains(err.Error(), `the engine has not answered the request "attach"`) {
		t.Errorf("show meanwhile: error %v", err)
	}
	select { // the addition began before the read-only request, which has timed out
	case err := <-added:
		t.Fatalf("the addition has ended before the engine answered: %v", err)
	default:
	}
	close(answer)
	if err := <-added; err != nil {
		t.Error(err)
	}
	if busy.Attached(f.port("t1").Number) == nil {
		t.Error("the port is not attached")
	}
}

// If the engine ends while a port is added, the port is not refused: the next engine gets it.
func TestPortIsAddedToNextEngine(t *testing.T) {
	f := newFakes(t)
	dying := f.last()
	dying.Attaching = func(uint32) { _ = dying.Kill() }
	if err := <-f.addTap("t1"); err != nil {
		t.Fatal(err)
	}
	if f.last() == dying || f.last().Attached(f.port("t1").Number) == nil {
		t.Error("the next engine does not have the port")
	}
}
