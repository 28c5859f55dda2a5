// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// Two hosts reach each other through devices that are ports of a bridge. The kernel's stack of
// the switch's host does not see their frames. The switch puts VLAN tags back that the kernel
// has taken off. Ports and frames survive the deaths of control and engine.
func TestDevicePorts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h, a, b := l.Host("h"), l.Host("a"), l.Host("b")
	l.Wire(h, "p0", a, "eth0", guestMTU)
	l.Wire(h, "p1", b, "eth0", guestMTU)
	a.Address("eth0", guestIP+"/24")
	b.Address("eth0", remoteIP+"/24")
	h.Address("p0", remoteIP+"/24") // the host would answer ARP for this address if its stack saw the frames
	d := h.Weftd("--name", "sw0")
	d.Weft("add-flow", "actions=normal")
	d.Weft("add-port", "p0", "type=device")
	d.Weft("add-port", "second", "type=device", "dev=p1")
	reach(t, a, remoteIP)
	if out := a.Run("ip", "neigh", "show", remoteIP); !strings.Contains(out, macOf(t, b, "eth0")) {
		t.Errorf("the host's stack answers for its own address: %s", out)
	}
	if out, err := h.Try(d.Binary("weft"), "--socket", d.Socket, "add-port", "third", "type=uplink", "dev=p1"); err == nil || !strings.Contains(out+err.Error(), "dev=p1: port second has it already") {
		t.Errorf("an uplink on the device of a port: %v %s", err, out)
	}

	frame, _ := hex.DecodeString("ffffffffffff020000000099" + "8100200988b5" + strings.Repeat("aa", 50))
	from, to := a.Raw("eth0"), b.Raw("eth0")
	if err := from.Send(frame); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Match(settle, func(got []byte) bool { return bytes.Equal(got, frame) }); err != nil {
		t.Errorf("a tagged frame: %v", err)
	}

	d.Control().Kill()
	d.Start()
	reach(t, a, remoteIP)
	d.KillEngine()
	reach(t, a, remoteIP)
	d.Weft("del-port", "p0")
	a.Run("ip", "neigh", "flush", "dev", "eth0")
	if err := lab.WaitPing(a, remoteIP, settle); err != nil {
		t.Errorf("the stack after del-port: %v", err)
	}
}

func macOf(t *testing.T, h *lab.Host, dev string) string {
	t.Helper()
	return strings.TrimSpace(h.Run("cat", "/sys/class/net/"+dev+"/address"))
}
