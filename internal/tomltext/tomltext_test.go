// SPDX-License-Identifier: Apache-2.0

package tomltext

import (
	"errors"
	"net/netip"
	"testing"
)

type file struct {
	Name string `toml:"name"`
	Nets []struct {
		VNI       uint32       `toml:"vni"`
		Flood     bool         `toml:"flood"`
		Addresses []netip.Addr `toml:"addresses"`
		Gateway   *netip.Addr  `toml:"gateway"`
		Subnet    netip.Prefix `toml:"subnet"`
	} `toml:"net"`
}

func TestErrorsNameTheFilesWords(t *testing.T) {
	for text, want := range map[string]string{
		"[[net]]\nvni = \"100\"":           "line 2: net.vni: expected a number, not string",
		"[[net]]\nvni = -1":                "line 2: net.vni: negative integer value -1 cannot be stored in uint32",
		"[[net]]\nflood = 1":               "line 2: net.flood: expected true or false, not integer",
		"name = 5":                         "line 1: name: expected a string in quotes, not integer",
		"[[net]]\naddresses = \"x\"":       "line 2: net.addresses: expected a list in brackets whose entries are each a string in quotes, not string",
		"[[net]]\ngateway = \"x\"":         "line 2: net.gateway: \"x\": expected an address, as in 10.0.0.1 or fd00::1",
		"[[net]]\nsubnet = \"10.0.0.0\"":   "line 2: net.subnet: \"10.0.0.0\": expected a prefix, as in 10.0.0.0/24 or fd00::/64",
		"net = 5":                          "line 1: net: expected a list in brackets whose entries are each a table with keys of its own, not integer",
		"name = \"a\"\nname = \"b\"":       "line 2: name: key name is already defined",
		"nmae = \"a\"":                     "line 1: nmae: unknown key; expected one of name, net",
		"[[net]]\nvni = 1\n[[net]]\nv = 2": "line 4: net.v: unknown key; expected one of vni, flood, addresses, gateway, subnet",
	} {
		err := Decode([]byte(text), &file{})
		if err == nil || err.Error() != want {
			t.Errorf("%q: %v, expected %s", text, err, want)
		}
	}
	var unknown *unknownKey
	if err := Decode([]byte("a = 1"), &file{}); !errors.As(err, &unknown) || unknown.Key != "a" {
		t.Errorf("unknown key: %v", err)
	}
	f := &file{}
	if err := Decode([]byte("name = \"a\"\n[[net]]\nvni = 7"), f); err != nil || f.Nets[0].VNI != 7 {
		t.Errorf("%+v, %v", f, err)
	}
}
