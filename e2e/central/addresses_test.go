// SPDX-License-Identifier: Apache-2.0

package central

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// addressed is a fleet with one host. The host's two guests get their addresses from the host.
type addressed struct {
	*site
	one, two *lab.FleetGuest
	dhclient string // path of a copy, which no AppArmor profile confines
	dir      string
}

func newAddressed(t *testing.T) *addressed {
	t.Helper()
	s := emptySite(t)
	l := s.lab
	installed, err := exec.LookPath("dhclient")
	if err != nil {
		t.Fatal("dhclient is missing; scripts/setup installs it")
	}
	a := &addressed{site: s, dir: l.Dir, dhclient: filepath.Join(l.Dir, "dhclient")}
	binary, err := os.ReadFile(installed)
	if err == nil {
		err = os.WriteFile(a.dhclient, binary, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.Weft("host", "add", "h1", "endpoint="+s.Endpoint(0))
	s.Weft("net", "add", "blue", "vni=100", "mtu=1400", "subnets=10.0.0.0/24", "routers=10.0.0.1", "dns=10.0.0.3,10.0.0.4", "domain=blue.example",
		"service=10.0.0.2", "dhcp=on", "lease=7200", "routes=10.1.0.0/16@10.0.0.9")
	a.one, a.two = s.guest("b", 1, 0), s.guest("b", 7, 0)
	for _, g := range []*lab.FleetGuest{a.one, a.two} {
		s.Weft("port", "add", g.Name, "net=blue", "mac="+g.MAC, "addresses="+g.IP)
	}
	d := s.AddHost("h1", "af_packet")
	for _, g := range []*lab.FleetGuest{a.one, a.two} {
		d.Tap(g.Host, g.MAC, "", guestMTU)
		g.At = d
	}
	s.expects("port why b1", "missing: nothing")
	s.expects("port why b7", "missing: nothing")
	return a
}

// lease runs dhclient in a guest until it has a lease. It returns the settings that dhclient then passes
// to its script (new_*), and the reasons of all calls of the script. In leaseFile, dhclient keeps its
// leases.
func (a *addressed) lease(g *lab.FleetGuest, leaseFile string) (env map[string]string, reasons string) {
	a.t.Helper()
	g.Run("ip", "address", "flush", "dev", "eth0", "scope", "global")
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(a.dir, g.Name+"-"+name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			a.t.Fatal(err)
		}
		return path
	}
	out := file("env", "", 0o600)
	script := file("script", "#!/bin/sh\nenv | sed \"s/^/$reason /\" >>"+out+`
case $reason in
BOUND|RENEW|REBIND|REBOOT) ip address replace "$new_ip_address/24" dev "$interface" ;;
esac
`, 0o755)
	options := file("conf", `option rfc3442-classless-static-routes code 121 = array of unsigned integer 8;
request subnet-mask, routers, domain-name, domain-name-servers, host-name, interface-mtu, rfc3442-classless-static-routes;
timeout 60; retry 5; initial-interval 1; reboot 10;
`, 0o600)
	g.Run(a.dhclient, "-1", "-sf", script, "-cf", options, "-lf", leaseFile, "-pf", filepath.Join(a.dir, g.Name+"-pid"), "eth0")
	g.Run(a.dhclient, "-x", "-sf", script, "-cf", options, "-lf", leaseFile, "-pf", filepath.Join(a.dir, g.Name+"-pid"), "eth0") // end it
	text, err := os.ReadFile(out)
	if err != nil {
		a.t.Fatal(err)
	}
	env = map[string]string{}
	for line := range strings.Lines(string(text)) {
		reason, setting, _ := strings.Cut(strings.TrimSpace(line), " ")
		key, value, _ := strings.Cut(setting, "=")
		if key == "reason" && reason != "STOP" { // the client that is ended
			reasons += " " + reason
		}
		if strings.HasPrefix(key, "new_") {
			env[key] = value
		}
	}
	return env, reasons
}

func (a *addressed) leaseFile(name string) string {
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		a.t.Fatal(err)
	}
	return path
}

// dhclient, a real client of DHCP, gets the declared address and settings from its own host, with
// and without a central. No other guest sees its requests.
func TestAddresses(t *testing.T) {
	a := newAddressed(t)
	raw := a.two.Raw("eth0")
	leases := a.leaseFile("one.leases")
	env, reasons := a.lease(a.one, leases)
	for key, want := range map[string]string{
		"new_ip_address": a.one.IP, "new_subnet_mask": "255.255.255.0", "new_routers": "10.0.0.1", "new_domain_name_servers": "10.0.0.3 10.0.0.4",
		"new_domain_name": "blue.example", "new_host_name": "b1", "new_interface_mtu": "1400", "new_dhcp_server_identifier": "10.0.0.2",
		"new_dhcp_lease_time": "7200", "new_dhcp_renewal_time": "3600", "new_dhcp_rebinding_time": "6300",
		"new_rfc3442_classless_static_routes": "16 10 1 10 0 0 9 0 10 0 0 1",
	} {
		if env[key] != want {
			t.Errorf("%s is %q, expected %q", key, env[key], want)
		}
	}
	if !strings.HasSuffix(reasons, " BOUND") {
		t.Errorf("the client's script ran for%s", reasons)
	}
	// frames to the service address are answered, not flooded
	a.one.Try("ping", "-c", "1", "-W", "1", "10.0.0.2")
	a.eventually("the service's address has a MAC address", func() error {
		if out := a.one.Run("ip", "neigh", "show", "10.0.0.2", "dev", "eth0"); !strings.Contains(out, "02:57:65:66:74:00") {
			a.one.Try("ping", "-c", "1", "-W", "1", "10.0.0.2")
			return fmt.Errorf("ip neigh: %s", out)
		}
		return nil
	})
	a.Weft("sync", "--wait=hosts")
	for _, c := range a.Centrals {
		c.Process().Kill()
	}
	if _, reasons = a.lease(a.one, leases); !strings.HasSuffix(reasons, " REBOOT") {
		t.Errorf("without a central, a client with a lease ran its script for%s", reasons)
	}
	a.host(1).Control().Kill()
	a.host(1).Start()
	if env, reasons = a.lease(a.two, a.leaseFile("two.leases")); env["new_ip_address"] != a.two.IP || !strings.HasSuffix(reasons, " BOUND") {
		t.Errorf("after a restart of control without a central: %s,%s", env["new_ip_address"], reasons)
	}
	text, err := os.ReadFile(leases)
	if err != nil {
		t.Fatal(err)
	}
	moved := a.leaseFile("moved.leases")
	if err := os.WriteFile(moved, []byte(strings.ReplaceAll(string(text), "fixed-address "+a.one.IP, "fixed-address 10.0.0.99")), 0o600); err != nil {
		t.Fatal(err)
	}
	if env, reasons = a.lease(a.one, moved); env["new_ip_address"] != a.one.IP || !strings.HasSuffix(reasons, " EXPIRE PREINIT BOUND") {
		t.Errorf("a client that asks for an address of another network gets %s,%s", env["new_ip_address"], reasons)
	}
	a.reach(a.one, a.two)
	a.sawNoRequest(raw)
}

// Linux's own client of router advertisements makes its address from the network's prefix, and dhclient
// gets the declared address from DHCPv6.
func TestAddressesOfIPv6(t *testing.T) {
	a := newAddressed(t)
	a.Weft("net", "set", "blue", "subnets=10.0.0.0/24,fd00::/64", "dns=fd00::53", "ra=slaac")
	for _, g := range []*lab.FleetGuest{a.one, a.two} {
		a.Weft("port", "set", g.Name, "addresses="+g.IP+","+slaac(g)+",fd00::"+g.IP[strings.LastIndex(g.IP, ".")+1:])
	}
	a.Weft("sync", "--wait=hosts")
	for _, g := range []*lab.FleetGuest{a.one, a.two} {
		g.EnableIPv6()
		for _, setting := range []string{"accept_ra=1", "autoconf=1", "accept_dad=0", "addr_gen_mode=0", "disable_ipv6=0"} {
			g.Run("sysctl", "-qw", "net.ipv6.conf.eth0."+setting)
		}
		g.Run("ip", "link", "set", "eth0", "down")
		g.Run("ip", "link", "set", "eth0", "up")
	}
	for _, g := range []*lab.FleetGuest{a.one, a.two} {
		a.eventually("an address from the advertisement", func() error {
			out := g.Run("ip", "-6", "address", "show", "dev", "eth0")
			mtu := g.Run("sysctl", "-n", "net.ipv6.conf.eth0.mtu")
			if !strings.Contains(out, slaac(g)+"/64") || strings.TrimSpace(mtu) != "1400" {
				return fmt.Errorf("mtu %s: %s", strings.TrimSpace(mtu), out)
			}
			return nil
		})
	}
	if err := lab.WaitPing(a.one, slaac(a.two), settle); err != nil {
		t.Error(err)
	}
	a.Weft("net", "set", "blue", "ra=dhcpv6-stateful", "--wait=hosts")
	env := a.lease6(a.one)
	for key, want := range map[string]string{"new_dhcp6_name_servers": "fd00::53", "new_dhcp6_domain_search": "blue.example."} {
		if env[key] != want {
			t.Errorf("%s is %q, expected %q", key, env[key], want)
		}
	}
	if got := env["new_ip6_address"]; got != "fd00::1" && got != slaac(a.one) {
		t.Errorf("the address is %q", got)
	}
}

// slaac returns the address that Linux makes from the prefix fd00::/64 and the guest's MAC address
// 02:00:00:00:00:NN (RFC 4291 appendix A).
func slaac(g *lab.FleetGuest) string { return "fd00::ff:fe00:" + strings.TrimPrefix(g.MAC[15:], "0") }

// lease6 runs dhclient in a guest until it has a lease of DHCPv6, and returns the environment of the
// script that dhclient runs then.
func (a *addressed) lease6(g *lab.FleetGuest) map[string]string {
	a.t.Helper()
	out, script := a.leaseFile("env6"), a.leaseFile("script6")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nenv >>"+out+"\n"), 0o755); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Chmod(script, 0o755); err != nil {
		a.t.Fatal(err)
	}
	options := []string{a.dhclient, "-6", "-1", "-sf", script, "-cf", "/dev/null", "-lf", a.leaseFile("six.leases"), "-pf", filepath.Join(a.dir, "six-pid")}
	g.Run(append(options, "eth0")...)
	g.Run(append(options, "-x", "eth0")...) // end it
	text, err := os.ReadFile(out)
	if err != nil {
		a.t.Fatal(err)
	}
	env := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), "="); strings.HasPrefix(key, "new_") {
			env[key] = value
		}
	}
	return env
}

// sawNoRequest fails if another guest has got a request of DHCP from guest one. A last broadcast
// shows that the guest gets broadcasts.
func (a *addressed) sawNoRequest(raw *lab.Raw) {
	a.t.Helper()
	last, err := hex.DecodeString("ffffffffffff" + strings.ReplaceAll(a.one.MAC, ":", "") + "88b5" + strings.Repeat("2a", 46))
	if err != nil {
		a.t.Fatal(err)
	}
	if err := a.one.Raw("eth0").Send(last); err != nil {
		a.t.Fatal(err)
	}
	from := string(last[6:12])
	if _, err := raw.Match(settle, func(f []byte) bool {
		if len(f) > 38 && string(f[6:12]) == from && f[12] == 8 && f[13] == 0 && f[23] == 17 && f[37] == 67 {
			a.t.Errorf("the other guest got a request of DHCP: %x", f[:42])
		}
		return string(f) == string(last)
	}); err != nil {
		a.t.Errorf("the other guest gets no broadcast: %v", err)
	}
}
