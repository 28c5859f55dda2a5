// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// ovs-vsctl makes a mirror. The mirror's output port gets a copy of each frame of the selected
// port, and no other frame.
func TestOVSDBMirror(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, a, b, probe := l.Host("h"), l.Host("a"), l.Host("b"), l.Host("probe")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	l.Wire(h, "p1", b, "eth0", guestMTU)
	l.Wire(h, "p2", probe, "eth0", guestMTU)
	a.Address("eth0", guestIP+"/24")
	b.Address("eth0", remoteIP+"/24")
	r := newRuled(t, h)
	r.vsctl("set open_vswitch . other_config:stats-update-interval=1000")
	r.vsctl("add-br br0 -- add-port br0 p0 -- add-port br0 p1 -- add-port br0 p2" +
		" -- --id=@out get port p2 -- --id=@a get port p0" +
		" -- --id=@m create mirror name=m select_src_port=@a output_port=@out snaplen=60 -- set bridge br0 mirrors=@m")
	copies := func() (n int) {
		_, text, _ := strings.Cut(r.get("mirror", "m", "statistics"), "tx_packets=")
		_, _ = fmt.Sscan(strings.TrimRight(text, "}"), &n) // 0 before the first write-back
		return n
	}
	seen := probe.Raw("eth0")
	reach(t, a, remoteIP)
	eventually(t, func() error {
		if copies() < 2 { // a question and a ping
			return fmt.Errorf("%d copies", copies())
		}
		return nil
	})
	from := macOf(t, a, "eth0")
	frame, err := seen.Match(time.Minute, func(frame []byte) bool { return net.HardwareAddr(frame[6:12]).String() == from })
	if err != nil || len(frame) > 60 {
		t.Errorf("the probe got %d bytes of %s, want up to 60: %v", len(frame), from, err)
	}
	if text := r.run("ovs-ofctl", "show", "br0"); strings.Contains(text, "mirror") {
		t.Errorf("the mirror is a port for flows:\n%s", text)
	}
	r.weft.Control().Kill()
	r.weft.Start()
	r.vsctl("set mirror m select_src_port=[] select_all=true")
	if text := r.weft.Weft("export"); !strings.Contains(text, "select_all = 'on'") {
		t.Errorf("after a restart and a change:\n%s", text)
	}
	r.vsctl("clear bridge br0 mirrors")
	if text := r.weft.Weft("export"); strings.Contains(text, "mirror") {
		t.Errorf("the mirror stays:\n%s", text)
	}
}
