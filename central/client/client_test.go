// SPDX-License-Identifier: Apache-2.0

package client

import "testing"

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
