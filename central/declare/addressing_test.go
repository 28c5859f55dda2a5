// SPDX-License-Identifier: Apache-2.0

package declare

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"weft/central/wire"
)

const addressed = `
[[net]]
name = "blue"
vni = 100
subnets = ["10.0.0.0/24", "fd00::/64"]
routers = ["10.0.0.1"]
dns = ["10.0.0.4", "10.0.0.3"]
domain = "blue.example"
service = ["10.0.0.2"]
dhcp = true
lease = 3600
routes = ["10.1.0.0/16@10.0.0.9"]
ra = "dhcpv6-stateful"

[[port]]
name = "web1"
net = "blue"
mac = "02:00:00:00:00:01"
addresses = ["10.0.0.5"]
`

const addressedWords = "subnets=10.0.0.0/24,fd00::/64 routers=10.0.0.1 dns=10.0.0.4,10.0.0.3 domain=blue.example service=10.0.0.2 dhcp=on lease=3600 routes=10.1.0.0/16@10.0.0.9 ra=dhcpv6-stateful"

// The settings of addresses are the same in a file, in words, in an export and in differences.
func TestAddressing(t *testing.T) {
	empty := NewFleet(nil)
	d := diff(t, empty, addressed, false)
	if want := "+ net blue vni=100 " + addressedWords + "\n"; !strings.HasPrefix(d.Text(), want) {
		t.Errorf("%s, expected\n%s", d.Text(), want)
	}
	fleet := empty.applied(d.Changes)
	exported, err := fleet.File().Format()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{addressed, string(exported)} {
		if again := diff(t, fleet, file, true); len(again.Changes) != 0 {
			t.Errorf("%s\nchanges %s", file, again.Text())
		}
	}
	n := &wire.Net{Id: "i", Name: "blue"}
	if err := fleet.SetNet(n, true, append([]string{"vni=100"}, strings.Fields(addressedWords)...)); err != nil {
		t.Fatal(err)
	}
	if v := NetOf(n); v.Text() != "vni=100 "+addressedWords {
		t.Error(v.Text())
	}
	// a later version's field stays, and no setting is left after all are removed
	n.Addressing.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
	if err := fleet.SetNet(n, false, []string{"dhcp=off", "lease=", "ra="}); err != nil || len(n.Addressing.ProtoReflect().GetUnknown()) != 3 {
		t.Error(err, n.Addressing)
	}
	n.Addressing.ProtoReflect().SetUnknown(nil)
	if err := fleet.SetNet(n, false, strings.Fields("subnets= routers= dns= domain= service= routes=")); err != nil || n.Addressing != nil {
		t.Error(err, n.Addressing)
	}
	six := &wire.Net{Id: "j", Name: "six"}
	if err := fleet.SetNet(six, true, strings.Fields("vni=6 subnets=fd00::/64 dhcp=on ra=dhcpv6-stateful")); err != nil {
		t.Errorf("a network of IPv6 only: %v", err)
	}
	if d := diff(t, fleet, strings.ReplaceAll(addressed, "lease = 3600", ""), false); d.Text() != "~ net blue lease=3600 -> none\n" {
		t.Error(d.Text())
	}
}

// An error about a wrong setting is one line, which names the user's word.
func TestWrongAddressing(t *testing.T) {
	fleet := NewFleet(nil)
	fleet = fleet.applied(diff(t, fleet, addressed, false).Changes)
	blue, _ := fleet.Nets.Lookup("blue")
	list := func(format string, n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return strings.Join(all, ",")
	}
	for words, want := range map[string]string{
		"subnets=10.0.0.0":                                 "subnets: 10.0.0.0: expected a prefix, as in 10.0.0.0/24",
		"subnets=10.0.0.0/33":                              "subnets: 10.0.0.0/33: expected a prefix",
		"subnets=10.0.0.1/24":                              "subnets: 10.0.0.1/24: expected the prefix without an address, as in 10.0.0.0/24",
		"subnets=10.0.0.0/24,10.0.0.128/25":                "subnets: 10.0.0.128/25 overlaps 10.0.0.0/24",
		"subnets=::ffff:10.0.0.0/120":                      "subnets: ::ffff:10.0.0.0/120: expected an IPv4 prefix in its own form",
		"subnets=" + list("10.%d.0.0/24", 17):              "subnets: 17 of them; expected at most 16",
		"subnets=":                                         "routers: 10.0.0.1 is in none of the subnets",
		"routers=10.9.0.1":                                 "routers: 10.9.0.1 is in none of the subnets; declare its prefix in subnets=",
		"routers=10.0.0.0/24":                              "routers: 10.0.0.0/24: expected an IP address",
		"routers=" + list("10.0.0.%d", 9)[1:]:              "routers: 0.0.0.0: expected",
		"dns=10.0.0.3,10.0.0.3":                            "dns: 10.0.0.3 is there twice",
		"dns=224.0.0.1":                                    "dns: 224.0.0.1: expected the address of one machine",
		"dns=" + list("10.0.0.1%d", 9):                     "dns: 9 of them; expected at most 8",
		"domain=blue_net":                                  `domain "blue_net": expected a name such as`,
		"domain=blue.":                                     `domain "blue.": expected`,
		"domain=-a":                                        `domain "-a": expected`,
		"domain=" + strings.Repeat("a", 64):                "expected a name such as",
		"domain=" + strings.Repeat("a.", 127) + "a":        "has 255 characters; expected at most 253",
		"service=10.9.0.1":                                 "service: 10.9.0.1 is in none of the subnets",
		"service=10.0.0.2,10.0.0.6":                        "service: 10.0.0.6 is the second of its kind",
		"service=":                                         "dhcp=on without an IPv4 address in service=",
		"service=fd00::2":                                  "dhcp=on without an IPv4 address in service=",
		"ra=on":                                            `ra "on": expected dhcpv6-stateful, dhcpv6-stateless or slaac`,
		"ra=slaac subnets=10.0.0.0/24":                     "ra=slaac without an IPv6 prefix in subnets=: declare one",
		"ra=slaac subnets=10.0.0.0/24,fd00::/80":           "ra=slaac with fd00::/80: guests make addresses only in a prefix of 64 bits",
		"ra=dhcpv6-stateful dhcp=off":                      "ra=dhcpv6-stateful without dhcp=on: guests would ask nobody",
		"dhcp=yes":                                         "dhcp=yes: expected on or off",
		"lease=59":                                         "lease=59: expected a number from 60 to 4294967295",
		"lease=1h":                                         "lease=1h: expected a number",
		"routes=10.1.0.0/16":                               "routes: 10.1.0.0/16: expected PREFIX@ROUTER, as in 10.1.0.0/16@10.0.0.9",
		"routes=10.1.0.1/16@10.0.0.9":                      "routes: 10.1.0.1/16: expected the prefix without an address",
		"routes=10.1.0.0/16@10.9.0.9":                      "10.9.0.9 is in none of the subnets",
		"routes=fd01::/64@fd00::1":                         "expected IPv4",
		"routes=10.1.0.0/16@10.0.0.9,10.1.0.0/16@10.0.0.8": "routes: 10.1.0.0/16 is there twice",
		"routes=" + list("10.1.%d.0/24@10.0.0.9", 17):      "routes: 17 of them; expected at most 16",
	} {
		err := fleet.SetNet(proto.Clone(blue).(*wire.Net), false, strings.Fields(words))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, expected %q", words, err, want)
		}
	}
	for text, want := range map[string]string{
		"routes = ['10.1.0.0/16']\n":  "routes: 10.1.0.0/16: expected PREFIX@ROUTER",
		"subnets = ['10.0.0.1/24']\n": "net n: subnets: 10.0.0.1/24: expected the prefix without an address",
		"lease = 5\n":                 "net n: lease 5: expected a number from 60",
		"dhcp = true\n":               "net n: dhcp=on without an IPv4 address in service=",
		"subnets = ['x']\n":           "line 4",
	} {
		file, err := ParseFile([]byte("[[net]]\nname = 'n'\nvni = 7\n" + text))
		if err == nil {
			_, err = fleet.Diff(file, false)
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, expected %q", text, err, want)
		}
	}
	file := parse(t, strings.ReplaceAll(addressed, `addresses = ["10.0.0.5"]`, `addresses = ["10.0.0.2"]`))
	if _, err := fleet.Diff(file, false); err == nil || !strings.Contains(err.Error(), "port web1: address 10.0.0.2 is the service address of net blue; choose another") {
		t.Error(err)
	}
}
