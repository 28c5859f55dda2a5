// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// The pauses between attempts to connect do not grow beyond a limit. With gRPC's default, the
// tenth attempt comes after more than 1.5 minutes.
func TestReconnectGoesOn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	attempts := make(chan struct{})
	go func() {
		defer close(attempts)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
			attempts <- struct{}{}
		}
	}()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), Reconnect())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.Connect()
	limit := time.After(time.Minute)
	for n := range 10 {
		select {
		case <-attempts:
		case <-limit:
			t.Fatalf("%d attempts to connect in a minute, expected 10", n)
		}
		conn.Connect()
	}
	go func() { // the goroutine above may wait with an attempt
		for range attempts {
		}
	}()
}
