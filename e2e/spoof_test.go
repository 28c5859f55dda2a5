// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

// A guest whose port is bound to addresses communicates over IPv4 and IPv6. With any
// other address it reaches nobody, and the switch counts the refused frames.
func TestBoundGuest(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	host, good, other := l.Host("host"), l.Host("good"), l.Host("other")
	d := host.Weftd()
	good.EnableIPv6()
	other.EnableIPv6()
	d.Tap(good, "02:00:00:00:00:01", "10.0.0.1/24", guestMTU, "addresses=02:00:00:00:00:01 10.0.0.1 fd00::1")
	d.Tap(other, "02:00:00:00:00:02", "10.0.0.2/24", guestMTU)
	d.Weft("add-flow", "actions=normal")
	good.Address("eth0", "fd00::1/64")
	other.Address("eth0", "fd00::2/64")
	for _, to := range []string{"10.0.0.2", "fd00::2"} {
		reach(t, good, to)
		lab.MustPing(t, good, to, 3)
	}
	reach(t, other, "10.0.0.1")
	reach(t, other, "fd00::1")
	reach(t, good, linkLocal(other, t)+"%eth0")
	if n := spoofed(t, d, "good"); n != 0 {
		t.Errorf("%d of the guest's own frames were dropped", n)
	}
	other.Run("ip", "neighbour", "flush", "dev", "eth0")
	refused := uint64(0)
	silent := func(name, to string, args ...string) {
		t.Helper()
		p, err := lab.Ping(good, to, 2, args...)
		if err != nil || p.Received != 0 {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
		if n := spoofed(t, d, "good"); n <= refused {
			t.Errorf("%s: %d frames counted, %d before", name, n, refused)
		} else {
			refused = n
		}
	}
	good.Address("eth0", "10.0.0.9/24")
	silent("another IPv4 source", "10.0.0.2", "-I", "10.0.0.9")
	good.Run("ip", "address", "add", "fd00::9/64", "dev", "eth0", "nodad")
	silent("another IPv6 source", "fd00::2", "-I", "fd00::9")
	good.Run("ip", "address", "del", "fd00::9/64", "dev", "eth0")
	// the switch drops ARP answers for other addresses
	if p, err := lab.Ping(other, "10.0.0.9", 2); err != nil || p.Received != 0 {
		t.Errorf("an address that is not bound answers: %+v, %v", p, err)
	}
	good.Run("ip", "address", "del", "10.0.0.9/24", "dev", "eth0")
	good.Run("ip", "link", "set", "eth0", "address", "02:00:00:00:00:09")
	silent("another MAC address", "10.0.0.2")
	good.Run("ip", "link", "set", "eth0", "address", "02:00:00:00:00:01")
	reach(t, good, "10.0.0.2")
}

func linkLocal(h *lab.Host, t *testing.T) string {
	t.Helper()
	out := h.Run("sh", "-c", "ip -6 -o address show dev eth0 scope link | awk '{print $4}'")
	p, err := netip.ParsePrefix(string(bytes.TrimSpace([]byte(out))))
	if err != nil {
		t.Fatal(err)
	}
	return p.Addr().String()
}

func spoofed(t *testing.T, d *lab.Daemon, port string) uint64 {
	t.Helper()
	return portOf(t, d, port).Stats.RxDrops["spoofed"]
}

func etherFrame(dst, src string, size int) []byte {
	d, _ := net.ParseMAC(dst)
	s, _ := net.ParseMAC(src)
	return append(append(append(d, s...), 0x88, 0xb5), make([]byte, size-14)...)
}

// A guest that uses an address of another VNI gets no frame of that VNI.
func TestAddressOfAnotherVNI(t *testing.T) {
	l := newLab(t)
	host, trunk, victim, thief := l.Host("host"), l.Host("trunk"), l.Host("victim"), l.Host("thief")
	d := host.Weftd()
	const victimMAC, trunkMAC = "02:00:00:00:00:07", "02:00:00:00:00:01"
	d.Tap(trunk, trunkMAC, "", guestMTU)
	d.Tap(victim, victimMAC, "", guestMTU, "vni=7")
	d.Tap(thief, "02:00:00:00:00:05", "", guestMTU, "vni=5")
	d.Weft("add-flow", "actions=normal")
	from, v, x := trunk.Raw("eth0"), victim.Raw("eth0"), thief.Raw("eth0")
	sendOne := func(r *lab.Raw, frame []byte) {
		t.Helper()
		if err := r.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	hears := func(r *lab.Raw, mark byte, limit time.Duration) bool {
		_, err := r.Match(limit, func(f []byte) bool { return len(f) > 20 && f[12] == 0x88 && f[13] == 0xb5 && f[20] == mark })
		return err == nil
	}
	marked := func(dst, src string, mark byte) []byte {
		f := etherFrame(dst, src, 64)
		f[20] = mark
		return f
	}
	sendOne(v, marked("ff:ff:ff:ff:ff:ff", victimMAC, 1))
	if !hears(from, 1, settle) {
		t.Fatal("the trunk hears nothing of the guest")
	}
	for mark := byte(2); mark < 12; mark++ {
		sendOne(x, marked("ff:ff:ff:ff:ff:ff", victimMAC, 100+mark))
		if !hears(from, 100+mark, settle) {
			t.Fatal("the trunk hears nothing of VNI 5")
		}
		sendOne(x, marked("ff:ff:ff:ff:ff:ff", trunkMAC, 200))
		sendOne(from, marked(victimMAC, trunkMAC, mark))
		if !hears(v, mark, settle) {
			t.Fatalf("frame %d does not reach the guest of VNI 7", mark)
		}
	}
	if hears(x, 11, silence) {
		t.Error("VNI 5 hears what is for VNI 7")
	}
	sendOne(v, marked(trunkMAC, victimMAC, 12))
	if !hears(from, 12, settle) {
		t.Error("VNI 7 does not reach the trunk any more")
	}
	if n := limitRow(t, d, "mac_moves", "thief").Refused; n == 0 {
		t.Error("no refusal is counted")
	}
}

func limitRow(t *testing.T, d *lab.Daemon, name, holder string) (row api.Limit) {
	t.Helper()
	var rows []api.Limit
	d.WeftJSON(&rows, "show", "limits")
	for _, r := range rows {
		if r.Name == name && r.Holder == holder {
			return r
		}
	}
	return row
}

// Frames with many invented source addresses do not evict the addresses of active
// guests. The attacker receives none of their frames.
func TestInventedSources(t *testing.T) {
	l := newLab(t)
	host, one, two, thief := l.Host("host"), l.Host("one"), l.Host("two"), l.Host("thief")
	d := host.Weftd("--cores", "0,1")
	d.Tap(one, "02:00:00:00:00:01", "10.0.0.1/24", guestMTU, "queues=2")
	d.Tap(two, "02:00:00:00:00:02", "10.0.0.2/24", guestMTU, "queues=2")
	d.Tap(thief, "02:00:00:00:00:03", "", guestMTU, "queues=2")
	d.Weft("add-flow", "actions=normal")
	reach(t, one, "10.0.0.2")
	x := thief.Raw("eth0")
	stop, ended := make(chan struct{}), make(chan struct{})
	sent := 0
	go func() {
		defer close(ended)
		frame := etherFrame("02:00:00:00:00:ff", "02:00:00:00:00:03", 64)
		for {
			select {
			case <-stop:
				return
			default:
			}
			binary.BigEndian.PutUint32(frame[8:], uint32(sent)|1<<31)
			if x.Send(frame) != nil {
				return
			}
			sent++
		}
	}()
	lab.MustPing(t, one, "10.0.0.2", 50)
	close(stop)
	<-ended
	// the attacker must receive none of the guests' ICMP frames
	if _, err := x.Match(silence, func(f []byte) bool {
		return len(f) > 34 && f[12] == 8 && f[13] == 0 && bytes.Equal(f[26:29], []byte{10, 0, 0})
	}); err == nil {
		t.Error("the attacker hears frames of the others")
	}
	row := limitRow(t, d, "macs", "thief")
	if row.Used > row.Limit || row.Limit == 0 || row.Refused == 0 {
		t.Errorf("%d frames sent: %+v", sent, row)
	}
	var macs []api.MAC
	d.WeftJSON(&macs, "fdb-show")
	at := map[string]string{}
	for _, m := range macs {
		at[m.MAC] = m.Port
	}
	for i, name := range []string{"one", "two"} {
		if mac := fmt.Sprint("02:00:00:00:00:0", i+1); at[mac] != name {
			t.Errorf("%s is at %q of %d addresses", mac, at[mac], len(at))
		}
	}
	t.Logf("%d frames sent, %d addresses learned, %d refused", sent, row.Used, row.Refused)
}

// On an established connection of a guest bound to its addresses, the switch admits no
// frame with another sender.
func TestBoundConnection(t *testing.T) {
	l := newLab(t)
	host, good, other, third := l.Host("host"), l.Host("good"), l.Host("other"), l.Host("third")
	d := host.Weftd()
	d.Tap(good, craftedSrcMAC, "", guestMTU, "addresses="+craftedSrcMAC+" "+craftedSrcIP)
	d.Tap(other, craftedDstMAC, "", guestMTU)
	d.Tap(third, "02:00:00:00:00:03", "", guestMTU, "addresses=02:00:00:00:00:03")
	for _, flow := range []string{
		"priority=1,actions=drop",
		"udp,actions=ct(table=1,zone=1)",
		"table=1,ct_state=+new+trk,udp,actions=ct(commit,zone=1),normal",
		"table=1,ct_state=+est+trk,udp,actions=normal",
	} {
		d.Weft("add-flow", flow)
	}
	g, o, x := good.Raw("eth0"), other.Raw("eth0"), third.Raw("eth0")
	there := udpFrame(t, 5000, 100)
	back := bytes.Clone(there)
	copy(back[0:6], there[6:12])
	copy(back[6:12], there[0:6])
	copy(back[26:30], there[30:34])
	copy(back[30:34], there[26:30])
	copy(back[34:36], there[36:38])
	copy(back[36:38], there[34:36])
	carry := func(from, to *lab.Raw, frame []byte) {
		t.Helper()
		err := from.Send(frame)
		if err == nil {
			_, err = to.Match(settle, func(f []byte) bool { return bytes.Equal(f, frame) })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		carry(g, o, there)
		carry(o, g, back)
	}
	stolen := bytes.Clone(there)
	stolen[11]++ // spoofs the source MAC address
	for range 10 {
		if err := g.Send(stolen); err != nil {
			t.Fatal(err)
		}
		if err := x.Send(there); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if a, b := spoofed(t, d, "good"), spoofed(t, d, "third"); a < 10 || b < 10 {
			return fmt.Errorf("%d and %d frames of 10 are counted", a, b)
		}
		return nil
	})
	if _, err := o.Match(silence, func(f []byte) bool { return bytes.Equal(f, stolen) || bytes.Equal(f, there) }); err == nil {
		t.Error("a frame of another sender arrives")
	}
	carry(g, o, there)
}
