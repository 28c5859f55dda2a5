// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weft/central/wire"
)

// A busy central is asked again if there is no other one.
func TestBusyCentralIsAskedAgain(t *testing.T) {
	c, err := New([]string{"unix:" + t.TempDir() + "/none"}, insecure.NewCredentials())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	calls := 0
	err = c.eachConn(t.Context(), time.Minute, func(context.Context, *grpc.ClientConn) error {
		if calls++; calls == 1 {
			return wire.BusyError("busy", time.Millisecond)
		}
		return nil
	})
	if err != nil || calls != 2 {
		t.Errorf("%v after %d calls", err, calls)
	}
	if in := wire.RetryIn(wire.BusyError("busy", 3*time.Second)); in != 3*time.Second {
		t.Errorf("repeat in %s", in)
	}
	if in := wire.RetryIn(nil); in != 0 {
		t.Errorf("repeat in %s without an error", in)
	}
}

func TestPlainText(t *testing.T) {
	for text, want := range map[string]string{
		"":                "",
		"port x: wrong":   "port x: wrong",
		"no way to \"b\"": "no way to \"b\"",
		`central a:1: rpc error: code = Unavailable desc = connection error: desc = "transport: Error while dialing: dial tcp a:1: connection refused"`: "central a:1: dial tcp a:1: connection refused",
		`connection error: desc = "transport: authentication handshake failed: x509"`:                                                                   "authentication handshake failed: x509",
		"central a:1: rpc error: code = PermissionDenied desc = host b is not declared":                                                                 "central a:1: host b is not declared",
	} {
		if got := PlainText(text); got != want {
			t.Errorf("%q: %q, expected %q", text, got, want)
		}
	}
}

func TestCheckAddress(t *testing.T) {
	for a, ok := range map[string]bool{"h:1": true, "10.0.0.1:7700": true, "[fd00::1]:7700": true, "unix:/s": true, "": false, "h": false, ":1": false, "h:": false, "unix:": false} {
		if err := CheckAddress(a); (err == nil) != ok {
			t.Errorf("%q: %v", a, err)
		}
	}
}
