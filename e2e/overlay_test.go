// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// fabric is five hosts on one network segment: three use weft, two use Linux's VXLAN
// and bridge fdb append. Broadcasts go to all hosts. The hosts learn other addresses.
//
//	guest i: 10.0.0.i, 02:00:00:00:00:0i     host i: 172.16.0.i
type fabric struct {
	t      *testing.T
	lab    *lab.Lab
	hosts  []*lab.Host
	weft   []*lab.Daemon // nil for a host with Linux's VXLAN
	guests []*lab.Host
}

const (
	fabricHosts = 5
	fabricWefts = 3
)

func newFabric(t *testing.T) *fabric {
	t.Helper()
	l := newLab(t)
	f := &fabric{t: t, lab: l}
	segment := l.Host("segment")
	segment.Run("ip", "link", "add", "br0", "type", "bridge")
	segment.Run("ip", "link", "set", "br0", "mtu", fmt.Sprint(underlayMTU), "up")
	for i := 1; i <= fabricHosts; i++ {
		h := l.Host(fmt.Sprint("h", i))
		plug := fmt.Sprint("s", i)
		l.Wire(h, "u0", segment, plug, underlayMTU)
		segment.Run("ip", "link", "set", plug, "master", "br0")
		h.Address("u0", f.vtep(i)+"/24")
		f.hosts = append(f.hosts, h)
		f.guests = append(f.guests, l.Host(fmt.Sprint("g", i)))
	}
	for i := 1; i <= fabricHosts; i++ {
		if i > fabricWefts {
			f.weft = append(f.weft, nil)
			f.linux(i)
			continue
		}
		d := f.hosts[i-1].Weftd()
		d.Weft("add-port", "uplink", "type=af_xdp", "dev=u0")
		d.Weft("add-port", "overlay", "type=vxlan", fmt.Sprint("vni=", siteVNI), "remote="+strings.Join(f.peers(i), ","))
		d.Weft("add-flow", "actions=normal")
		f.weft = append(f.weft, d)
		f.attach(i, i)
	}
	return f
}

func (f *fabric) vtep(i int) string    { return fmt.Sprint("172.16.0.", i) }
func (f *fabric) address(i int) string { return fmt.Sprint("10.0.0.", i) }

func (f *fabric) peers(i int) (list []string) {
	for j := 1; j <= fabricHosts; j++ {
		if j != i {
			list = append(list, f.vtep(j))
		}
	}
	return list
}

func (f *fabric) linux(i int) {
	h, vx := f.hosts[i-1], fmt.Sprint("vx", siteVNI)
	h.LinuxVTEP(f.guests[i-1], f.address(i)+"/24", siteVNI, guestMTU, "u0", f.vtep(i), f.peers(i)[0])
	for _, r := range f.peers(i)[1:] {
		h.Run("bridge", "fdb", "append", "00:00:00:00:00:00", "dev", vx, "dst", r)
	}
}

func (f *fabric) attach(g, i int) {
	f.weft[i-1].Tap(f.guests[g-1], fmt.Sprintf("02:00:00:00:00:%02x", g), f.address(g)+"/24", guestMTU)
}

// Every guest reaches every other guest, first by frames to all hosts, then by learned
// addresses.
func TestOverlayOfFiveHosts(t *testing.T) {
	t.Parallel()
	f := newFabric(t)
	for i, g := range f.guests {
		for j := range f.guests {
			if i != j {
				reach(t, g, f.address(j+1))
			}
		}
	}
	lab.MustPing(t, f.guests[0], f.address(2), 5, "-s", "1472", "-M", "do")
	lab.MustPing(t, f.guests[0], f.address(5), 5, "-s", "1472", "-M", "do")
	flood(t, f.guests[0], f.guests[3], f.address(4))

	t.Run("no copy to others once learned", func(t *testing.T) {
		before := f.arrived(3)
		flood(t, f.guests[0], f.guests[1], f.address(2), "-u", "-b", "50M")
		if after := f.arrived(3); after-before > 100 {
			t.Errorf("%d frames between others arrived at host 3", after-before)
		}
	})
	t.Run("a broadcast arrives once", func(t *testing.T) {
		wires := []*lab.Raw{f.guests[1].Raw("eth0"), f.guests[4].Raw("eth0")}
		frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, make([]byte, 46)...)
		if err := f.guests[0].Raw("eth0").Send(frame); err != nil {
			t.Fatal(err)
		}
		for i, w := range wires {
			mine := func(got []byte) bool { return len(got) >= 60 && got[12] == 0x88 && got[13] == 0xb5 }
			if _, err := w.Match(settle, mine); err != nil {
				t.Errorf("receiver %d: %v", i, err)
			}
			if _, err := w.Match(2*silence, mine); err == nil {
				t.Errorf("receiver %d has it twice", i)
			}
		}
	})
	t.Run("a guest moves", func(t *testing.T) {
		for _, to := range []int{3, 1, 2} {
			for i := range fabricWefts {
				f.weft[i].TryWeft("del-port", f.guests[1].Name)
			}
			f.attach(2, to)
			// the first frame of the moved guest tells all hosts where the guest is
			reach(t, f.guests[1], f.address(5))
			for _, from := range []int{1, 3, 4, 5} {
				reach(t, f.guests[from-1], f.address(2))
			}
		}
	})
}

func (f *fabric) arrived(i int) uint64 {
	f.t.Helper()
	return portOf(f.t, f.weft[i-1], "overlay").Stats.RxPackets
}

// Two overlays whose guests have the same addresses are isolated from each other.
func TestOverlaysAreIsolated(t *testing.T) {
	t.Parallel()
	f := newFabric(t)
	other := siteVNI + 1
	strangers := []*lab.Host{f.lab.Host("x1"), f.lab.Host("x2")}
	for i, x := range strangers {
		d := f.weft[i]
		d.Weft("add-port", "other", "type=vxlan", fmt.Sprint("vni=", other), "remote="+strings.Join(f.peers(i+1), ","))
		d.Tap(x, fmt.Sprintf("02:00:00:00:01:%02x", i+1), fmt.Sprintf("10.0.0.%d/24", 101+i), guestMTU)
		d.Weft("del-flows")
		d.Weft("add-flow", fmt.Sprintf("in_port=%s,actions=output:other", x.Name))
		d.Weft("add-flow", fmt.Sprintf("in_port=other,actions=output:%s", x.Name))
		d.Weft("add-flow", fmt.Sprintf("in_port=g%d,actions=output:overlay", i+1))
		d.Weft("add-flow", fmt.Sprintf("in_port=overlay,actions=output:g%d", i+1))
	}
	reach(t, strangers[0], "10.0.0.102")
	reach(t, f.guests[0], f.address(2))
	reach(t, f.guests[0], f.address(4))
	for _, to := range []string{f.address(1), f.address(2), f.address(4)} {
		if p, err := lab.Ping(strangers[0], to, 2); err != nil || p.Received != 0 {
			t.Errorf("from VNI %d to %s of VNI %d: %+v, %v", other, to, siteVNI, p, err)
		}
	}
}
