// SPDX-License-Identifier: Apache-2.0

package ports

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"weft/control/usererr"
)

// The error of a wrong option names the word and describes valid values.
func TestOptionsRefused(t *testing.T) {
	for _, c := range []struct{ words, offending, expected string }{
		{"dev=x", "type=", "type=af_packet|af_xdp|bond|device|erspan|geneve|gre|ipfix|local|mirror|patch|sflow|tap|uplink|vhost-user|vxlan|vxlan-gpe"},
		{"type=tun", "type=tun", "af_xdp, bond, device, erspan, geneve, gre, ipfix, local, mirror, patch, sflow, tap, uplink, vhost-user, vxlan, vxlan-gpe"},
		{"type=tap dev", "dev", "KEY=VALUE"},
		{"type=tap =x", "=x", "KEY=VALUE"},
		{"type=tap type=tap", "type=tap", "twice"},
		{"type=tap dev=a dev=b", "dev=b", "twice"},
		{"type=tap path=/x", "path=/x", "addresses, admin, bond, bridge, cvlans, dev, flood, id, ingress_policing_burst"},
		{"type=tap dev=abcdefghijklmnop", "dev=abcdefghijklmnop", "15 characters"},
		{"type=tap dev=a/b", "dev=a/b", "name"},
		{"type=tap mac=01:00:00:00:00:01", "mac=01:00:00:00:00:01", "unicast MAC"},
		{"type=tap mac=2:3", "mac=2:3", "unicast MAC"},
		{"type=tap mtu=67", "mtu=67", "68 to 10000"},
		{"type=tap netns=a/b", "netns=a/b", "network namespace"},
		{"type=tap tag=4096", "tag=4096", "0 to 4095"},
		{"type=tap trunks=5-1", "trunks=5-1", "1,10-20"},
		{"type=tap vlan_mode=qinq", "vlan_mode=qinq", "dot1q-tunnel"},
		{"type=af_xdp dev=e tag=1", "tag=1", "no option tag"},
		{"type=vhost-user", "path=", "missing"},
		{"type=vhost-user path=x", "path=x", "absolute path"},
		{"type=vhost-user path=/x mode=up", "mode=up", "client, server"},
		{"type=vhost-user path=/x socket-owner=", "socket-owner=", "a name or a number"},
		{"type=vhost-user path=/x socket-group=-1", "socket-group=-1", "a name or a number"},
		{"type=vhost-user path=/x socket-mode=1777", "socket-mode=1777", "octal"},
		{"type=vhost-user path=/x socket-mode=8", "socket-mode=8", "octal"},
		{"type=vhost-user path=/x queues=0", "queues=0", "1 to 128"},
		{"type=af_xdp", "dev=", "missing"},
		{"type=af_xdp dev=e mode=fast", "mode=fast", "auto, zerocopy, copy, generic"},
		{"type=vxlan remote=1.2.3.4", "vni=", "missing"},
		{"type=vxlan vni=1", "remote=", "missing"},
		{"type=vxlan vni=16777216 remote=1.2.3.4", "vni=16777216", "0 to 16777215, or flow"},
		{"type=vxlan vni=x remote=1.2.3.4", "vni=x", "or flow"},
		{"type=vxlan vni=1 remote=1.2.3", "remote=1.2.3", "IPv4 or IPv6 address, or several with commas between, or a multicast group, or flow"},
		{"type=vxlan vni=1 remote=224.0.0.1,10.0.0.1", "remote=224.0.0.1,10.0.0.1", "unicast"},
		{"type=vxlan vni=1 remote=flow ttl=0", "ttl=0", "1 to 255, or inherit"},
		{"type=vxlan vni=1 remote=flow tos=inherited", "tos=inherited", "or inherit"},
		{"type=vxlan vni=1 remote=flow reserved=drop", "reserved=drop", "ignore, refuse, gbp, gpe"},
		{"type=vxlan vni=1 remote=flow gbp=yes", "gbp=yes", "on, off"},
		{"type=vxlan remote_ip=10.0.0.2 key=5", "remote_ip=10.0.0.2", "Open vSwitch's; expected remote="},
		{"type=vxlan remote=10.0.0.2 key=5", "key=5", "Open vSwitch's; expected vni="},
		{"type=vhost-user vhost-server-path=/x", "vhost-server-path=/x", "expected path="},
		{"type=patch key=5", "key=5", "expected one of"},
		{"type=geneve vni=1 remote=flow gbp=on", "gbp=on", "no option gbp"},
		{"type=geneve vni=1 remote=flow reserved=gbp", "reserved=gbp", "no option reserved"},
		{"type=vxlan-gpe remote=flow", "vni=", "missing"},
		{"type=vxlan vni=1 remote=flow learning=no", "learning=no", "on, off"},
		{"type=tap vni=flow", "vni=flow", "0 to 16777215"},
		{"type=vxlan vni=1 remote=flow local=flow", "local=flow", "address"},
		{"type=gre remote=10.0.0.2 in_key=5", "in_key=5", "Open vSwitch's; expected key="},
		{"type=gre remote=10.0.0.2 vni=5", "vni=5", "no option vni"},
		{"type=gre remote=10.0.0.2 dst_port=5", "dst_port=5", "no option dst_port"},
		{"type=gre remote=10.0.0.2 key=16777216", "key=16777216", "0 to 16777215, or flow"},
		{"type=erspan remote=10.0.0.2 key=1024", "key=1024", "0 to 1023, or flow"},
		{"type=erspan remote=10.0.0.2 erspan_ver=3", "erspan_ver=3", "1 to 2"},
		{"type=erspan remote=10.0.0.2 erspan_idx=0x100000", "erspan_idx=0x100000", "0 to 1048575"},
		{"type=erspan remote=10.0.0.2 erspan_hwid=64", "erspan_hwid=64", "0 to 63"},
		{"type=erspan remote=10.0.0.2 erspan_dir=2", "erspan_dir=2", "0 to 1"},
		{"type=vxlan vni=1 remote=flow dst_port=0", "dst_port=0", "1 to 65535"},
	} {
		_, _, _, err := parseOptions(strings.Fields(c.words))
		var input *usererr.Error
		if !errors.As(err, &input) {
			t.Errorf("%s: %v", c.words, err)
			continue
		}
		if !strings.Contains(err.Error(), c.offending) || !strings.Contains(err.Error(), c.expected) {
			t.Errorf("%s: %q does not name %q and %q", c.words, err, c.offending, c.expected)
		}
	}
}

func TestOptionsAccepted(t *testing.T) {
	for _, c := range []struct {
		words string
		want  map[string]string
	}{
		{"type=tap", map[string]string{"type": "tap", "offloads": "on", "queues": "1"}},
		{"type=tap offloads=off queues=2", map[string]string{"type": "tap", "offloads": "off", "queues": "2"}},
		{"type=vhost-user path=/x", map[string]string{"type": "vhost-user", "path": "/x", "mode": "server", "queues": "1", "offloads": "on"}},
		{"type=af_xdp dev=eth0 queues=2", map[string]string{"type": "af_xdp", "dev": "eth0", "queues": "2", "mode": "auto"}},
		{"type=vxlan vni=flow remote=flow", map[string]string{"type": "vxlan", "vni": "flow", "remote": "flow", "dst_port": "4789"}},
		{"type=vxlan vni=0 remote=2001:db8::1 local=2001:db8::2", map[string]string{"type": "vxlan", "vni": "0",
			"remote": "2001:db8::1", "local": "2001:db8::2", "dst_port": "4789"}},
		{"type=vhost-user path=/x socket-owner=root socket-group=7 socket-mode=660", map[string]string{"type": "vhost-user", "path": "/x",
			"mode": "server", "queues": "1", "offloads": "on", "socket-owner": "root", "socket-group": "7", "socket-mode": "660"}},
	} {
		_, values, _, err := parseOptions(strings.Fields(c.words))
		if err != nil || !maps.Equal(values, c.want) {
			t.Errorf("%s: %v, %v", c.words, values, err)
		}
	}
}

func TestPortNames(t *testing.T) {
	for _, name := range []string{"a", "eth0", "vm-1.net_0", "_x"} {
		if err := checkPortName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", "1", "0x1", "a,b", "a b", "normal", "IN_PORT", "drop", "a=b", "-a", strings.Repeat("a", 64)} {
		if checkPortName(name) == nil {
			t.Errorf("%q is accepted as a port name", name)
		}
	}
}
