// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// ovn has OVN's databases and ovn-northd, in a host's namespace.
type ovn struct {
	t    *testing.T
	host *lab.Host
	dir  string
}

func newOVN(t *testing.T, h *lab.Host) *ovn {
	t.Helper()
	for _, name := range []string{"ovn-northd", "ovn-nbctl", "ovn-controller"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skip(name + " is missing: run scripts/setup, and put .cache/programs/usr/bin into PATH")
		}
	}
	o := &ovn{t, h, t.TempDir()}
	northd, _ := exec.LookPath("ovn-northd")
	for _, db := range []string{"nb", "sb"} {
		schema := "/usr/share/ovn/ovn-" + db + ".ovsschema"
		if _, err := os.Stat(schema); err != nil {
			schema = filepath.Join(filepath.Dir(northd), filepath.Base(schema)) // where scripts/setup puts it
		}
		h.Run("ovsdb-tool", "create", o.dir+"/"+db+".db", schema)
	}
	h.Spawn("ovsdb-server", o.dir+"/nb.db", o.dir+"/sb.db", "--remote=punix:"+o.dir+"/ovn.sock", "--unixctl="+o.dir+"/db.ctl")
	eventually(t, func() error {
		_, err := h.Try(o.nbctl("init")...)
		return err
	})
	h.Spawn("env", "OVN_RUNDIR="+o.dir, "OVS_RUNDIR="+o.dir, "ovn-northd", "--ovnnb-db=unix:"+o.dir+"/ovn.sock", "--ovnsb-db=unix:"+o.dir+"/ovn.sock", "--unixctl="+o.dir+"/northd.ctl")
	return o
}

func (o *ovn) nbctl(words ...string) []string {
	return append([]string{"ovn-nbctl", "--db=unix:" + o.dir + "/ovn.sock", "--timeout=100"}, words...)
}

func (o *ovn) nb(line string) string {
	o.t.Helper()
	return o.host.Run(o.nbctl(strings.Fields(line)...)...)
}

// chassis starts ovn-controller on a host, and a weftd that follows a database of its own.
func (o *ovn) chassis(h *lab.Host, address string) *ruled {
	o.t.Helper()
	r := newRuled(o.t, h)
	r.vsctl("set open_vswitch . external_ids:system-id=" + h.Name + " external_ids:ovn-remote=unix:" + o.dir + "/ovn.sock" +
		" external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=" + address)
	h.Spawn(r.command("env", "OVN_RUNDIR="+r.dir, "ovn-controller", "unix:"+r.dir+"/db.sock", "--log-file="+r.dir+"/ovn.log")...)
	o.t.Cleanup(func() {
		if text, _ := os.ReadFile(r.dir + "/ovn.log"); o.t.Failed() {
			o.t.Logf("ovn-controller of %s:\n%s", h.Name, text[max(0, len(text)-4000):])
		}
	})
	return r
}

// OVN's northd and controllers make a logical switch of two ports, a router and a DHCP answer
// on two chassis of Weft, and ovn-nbctl --wait=hv returns.
func TestOVN(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c1, c2, a, b := l.Host("c1"), l.Host("c2"), l.Host("a"), l.Host("b")
	l.Wire(c1, "u0", c2, "u0", underlayMTU)
	c1.Address("u0", hostIP+"/24")
	c2.Address("u0", peerIP+"/24")
	l.Wire(c1, "vm1", a, "eth0", 1400)
	l.Wire(c2, "vm2", b, "eth0", 1400)
	o := newOVN(t, c1)
	r1, r2 := o.chassis(c1, hostIP), o.chassis(c2, peerIP)
	o.nb("ls-add net -- lsp-add net p1 -- lsp-add net p2")
	o.nb("lr-add router -- lrp-add router r-net 02:00:00:00:00:fe 10.0.0.254/24" +
		" -- lsp-add net net-r -- lsp-set-type net-r router -- lsp-set-addresses net-r router -- lsp-set-options net-r router-port=r-net")
	for _, g := range []struct {
		guest    *lab.Host
		port, ip string
	}{{a, "p1", guestIP}, {b, "p2", remoteIP}} {
		o.host.Run(o.nbctl("lsp-set-addresses", g.port, macOf(t, g.guest, "eth0")+" "+g.ip)...)
		g.guest.Address("eth0", g.ip+"/24")
	}
	for _, c := range []struct {
		r         *ruled
		dev, port string
	}{{r1, "vm1", "p1"}, {r2, "vm2", "p2"}} {
		eventually(t, func() error { // ovn-controller makes br-int
			_, err := c.r.host.Try(c.r.command("ovs-vsctl", "--db=unix:"+c.r.dir+"/db.sock", "--timeout=20", "br-exists", "br-int")...)
			return err
		})
		c.r.vsctl("add-port br-int " + c.dev + " -- set interface " + c.dev + " external_ids:iface-id=" + c.port)
	}
	o.nb("--wait=hv sync")
	reach(t, a, remoteIP)
	reach(t, b, "10.0.0.254")
	if got := o.nb("get logical_switch_port p1 up"); strings.TrimSpace(got) != "true" {
		t.Errorf("p1 is up: %s", got)
	}

	// The provider network behind br-ex, a standalone bridge, whose gateway is on c1.
	r1.vsctl("add-br br-ex -- set open_vswitch . external_ids:ovn-bridge-mappings=phys:br-ex")
	c1.Address("br-ex", "10.1.0.1/24")
	c1.Run("ip", "route", "add", "10.0.0.0/24", "via", "10.1.0.254")
	for _, g := range []*lab.Host{a, b} {
		g.Run("ip", "route", "add", "10.1.0.0/24", "via", "10.0.0.254")
	}
	o.nb("ls-add out -- lsp-add out phys -- lsp-set-type phys localnet -- lsp-set-addresses phys unknown -- lsp-set-options phys network_name=phys")
	o.nb("lrp-add router r-out 02:00:00:00:00:fd 10.1.0.254/24 -- lrp-set-gateway-chassis r-out c1 -- set logical_router_port r-out options:gateway_mtu=600" +
		" -- lsp-add out out-r -- lsp-set-type out-r router -- lsp-set-addresses out-r router -- lsp-set-options out-r router-port=r-out")
	o.nb("--wait=hv sync")
	reach(t, a, "10.1.0.1")
	reach(t, b, "10.1.0.1")
	eventually(t, func() error { // ovn-controller answers: it resumes a frame that its packet-out has paused
		out, err := a.Try("ping", "-c1", "-W2", "-Mdo", "-s1000", "10.1.0.1")
		if all := out + fmt.Sprint(err); !strings.Contains(all, "mtu = 600") && !strings.Contains(all, "mtu=600") {
			return fmt.Errorf("a frame beyond the gateway's MTU: %s", all)
		}
		return nil
	})
}
