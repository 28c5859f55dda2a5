// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"weft/api"
)

var testMAC = net.HardwareAddr{2, 0, 0, 0, 0, 1}

func TestPortOptions(t *testing.T) {
	a := attachment{"pods", "c1", "eth0"}
	own := []string{"type=device", "dev=" + a.device(), "id=pods/c1/eth0"}
	ips := []*current.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 0, 0, 5), Mask: net.CIDRMask(24, 32)}}}
	for keys, want := range map[string][]string{
		`"bridge": "br0"`:              {"bridge=br0"},
		`"vlan": 0`:                    {"tag=0"},
		`"vlan": 7, "offload": true`:   {"tag=7", "offload=on"},
		`"bind": true`:                 {"addresses=02:00:00:00:00:01 10.0.0.5"},
		`"options": {"trunks": "1-3"}`: {"trunks=1-3"},
		`"runtimeConfig": {"bandwidth": {"ingressRate": 1000000, "ingressBurst": 2000000, "egressRate": 5000, "egressBurst": 9000}}, "options": {"qos": "0:5M"}`: {
			"ingress_policing_burst=9", "ingress_policing_rate=5", "qos=0:1000000:2000000"},
	} {
		c, err := parse([]byte(`{"cniVersion": "1.1.0", "name": "pods", "type": "weft-cni", ` + keys + `}`))
		if err != nil {
			t.Errorf("%s: %v", keys, err)
			continue
		}
		if diff := cmp.Diff(append(own[:3:3], want...), c.portOptions(a, testMAC, ips)); diff != "" {
			t.Errorf("%s: %s", keys, diff)
		}
	}
}

func TestWrongConfigurations(t *testing.T) {
	for keys, want := range map[string]string{
		`"mtu": 67`:                                     "network pods: mtu 67: expected 68 to 65535",
		`"vlan": 4096`:                                  "network pods: vlan 4096: expected 0 to 4095",
		`"options": {"dev": "x"}`:                       "network pods: options dev: the plugin names the device",
		`"options": {"tag": "3"}`:                       `network pods: options tag: use the key "vlan"`,
		`"runtimeConfig": {"mac": "01:0:0"}`:            "network pods: MAC address 01:0:0: expected a unicast address as in 02:00:00:00:00:01",
		`"args": {"cni": {"mac": "ff:ff:ff:ff:ff:ff"}}`: "network pods: MAC address ff:ff:ff:ff:ff:ff: expected a unicast address as in 02:00:00:00:00:01",
	} {
		_, err := parse([]byte(`{"cniVersion": "1.1.0", "name": "pods", ` + keys + `}`))
		if codeOf(err) != types.ErrInvalidNetworkConfig || err.Error() != want {
			t.Errorf("%s: code %d: %v, want %s", keys, codeOf(err), err, want)
		}
	}
	if _, err := parse([]byte(`{"vlan": "seven"}`)); codeOf(err) != types.ErrDecodingFailure {
		t.Errorf("a text as vlan: %v", err)
	}
}

func codeOf(err error) uint {
	var known *types.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return 0
}

// The MAC address of the capability has precedence over that of CNI_ARGS, and this over that of the key
// "args".
func TestMACs(t *testing.T) {
	const fromArgs = "IgnoreUnknown=1;MAC=02:00:00:00:00:02"
	for keys, want := range map[string]string{
		``: "02:00:00:00:00:02",
		`, "args": {"cni": {"mac": "02:00:00:00:00:03"}}`: "02:00:00:00:00:02",
		`, "runtimeConfig": {"mac": "02:00:00:00:00:01"}`: "02:00:00:00:00:01",
	} {
		c, err := parse([]byte(`{"name": "pods"` + keys + `}`))
		if err == nil {
			err = c.readArgs(&skel.CmdArgs{Args: fromArgs})
		}
		if err != nil || c.mac.String() != want {
			t.Errorf("%s: %v, %v, want %s", keys, c.mac, err, want)
		}
	}
	c, _ := parse([]byte(`{"name": "pods"}`))
	if err := c.readArgs(&skel.CmdArgs{Args: "MAC=x"}); codeOf(err) != types.ErrInvalidEnvironmentVariables {
		t.Errorf("MAC=x: %v", err)
	}
}

// Names fit Linux and weftd, and no two attachments share one.
func TestNames(t *testing.T) {
	long := strings.Repeat("c", 300)
	seen := map[string]attachment{}
	for _, a := range []attachment{
		{"pods", "c1", "eth0"}, {"pods", "c1", "eth1"}, {"pods", "c1e", "th0"}, {"pod", "sc1", "eth0"}, {"pods", long, "eth,0"}, {"pods", long + "d", "eth0"},
	} {
		for _, name := range []string{a.port(), a.device()} {
			if other, twice := seen[name]; twice {
				t.Errorf("%v and %v: both %s", a, other, name)
			}
			seen[name] = a
		}
		if !strings.HasPrefix(a.port(), portPrefix(a.network)) || len(a.port()) > 63 || len(a.device()) != 15 || len(a.id()) > 255 || len(a.alias()) > 255 {
			t.Errorf("%v: port %s, device %s, id %s, alias %s", a, a.port(), a.device(), a.id(), a.alias())
		}
		if back, ok := attachmentOfID(a.id()); len(a.container) < 100 && (!ok || back != a) {
			t.Errorf("id %s: %v, %v, want %v", a.id(), back, ok, a)
		}
	}
	if back, _ := attachmentOfID(attachment{"pods", "c1", "eth,0 é"}.id()); back.ifname != "eth,0 é" {
		t.Errorf("an interface's name after the id: %q", back.ifname)
	}
}

// The result of a chained plugin keeps the interfaces, addresses and routes of the plugins before it.
func TestResultBehindOthers(t *testing.T) {
	c, err := parse([]byte(`{"cniVersion": "1.0.0", "name": "pods", "dns": {"nameservers": ["10.0.0.9"]}, "prevResult": {"cniVersion": "1.0.0",
		"interfaces": [{"name": "lo", "sandbox": "/ns"}], "ips": [{"address": "127.0.0.1/8", "interface": 0}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	result := &current.Result{IPs: []*current.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 0, 0, 5), Mask: net.CIDRMask(24, 32)}}}}
	args := &skel.CmdArgs{ContainerID: "c1", Netns: "/ns", IfName: "eth0"}
	c.describe(result, attachmentOf(c, args), args, net.HardwareAddr{2, 0, 0, 0, 0, 9}, testMAC, 1400)
	if len(result.Interfaces) != 3 || len(result.IPs) != 2 || *result.IPs[0].Interface != 0 || *result.IPs[1].Interface != 2 || result.DNS.Nameservers[0] != "10.0.0.9" {
		t.Errorf("interfaces %v, addresses %v, DNS %v", result.Interfaces, result.IPs, result.DNS)
	}
	own := ownPart(result, &pod{path: "/ns", ifname: "eth0"})
	if own == nil || own.Interfaces[0].Mtu != 1400 || len(own.IPs) != 1 || own.IPs[0] != result.IPs[1] {
		t.Errorf("own part of the result: %v", own)
	}
}

// Errors are one line and have the code that tells the runtime what to do.
func TestErrors(t *testing.T) {
	for _, x := range []struct {
		err  error
		want uint
	}{
		{ofWeftd("x", errors.New("no daemon")), types.ErrTryAgainLater},
		{ofWeftd("x", &api.Refused{Message: "starts", Unavailable: true}), types.ErrTryAgainLater},
		{ofWeftd("x", &api.Refused{Message: "bridge", Input: true}), types.ErrInvalidNetworkConfig},
		{ofWeftd("x", &api.Refused{Message: "device"}), codeRefused},
		{coded(codeIPAM, "x", types.NewError(12, "a\nb", "c")), 12},
		{coded(codeIPAM, "x", errors.New("none")), codeIPAM},
		{joined(nil, failure(5, "a"), failure(7, "b")), 5},
	} {
		if codeOf(x.err) != x.want || strings.Contains(x.err.Error(), "\n") {
			t.Errorf("%v: code %d, want %d", x.err, codeOf(x.err), x.want)
		}
	}
	if err := joined(nil, nil); err != nil {
		t.Errorf("no error: %v", err)
	}
}

// repeat repeats a request while weftd does not answer. An answer of weftd, even a refusal, ends it.
func TestRepeat(t *testing.T) {
	calls := 0
	refused := &api.Refused{Message: "no"}
	err := repeat(func() error {
		if calls++; calls == 1 {
			return errors.New("no daemon")
		}
		return refused
	})
	if calls != 2 || !errors.Is(err, refused) {
		t.Errorf("%d calls, %v", calls, err)
	}
}
