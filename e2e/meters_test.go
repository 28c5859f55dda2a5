// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/lab"
)

// twoGuests starts weftd with guests on the ports 1 and 2, and adds a flow from port 2
// to port 1.
func twoGuests(t *testing.T) (d *lab.Daemon, a, b *lab.Host) {
	t.Helper()
	l := newLab(t)
	d, a, b = l.Host("host").Weftd(), l.Host("a"), l.Host("b")
	d.Tap(a, guestMAC, "10.0.0.1/24", guestMTU)
	d.Tap(b, "02:00:00:00:00:02", "10.0.0.2/24", guestMTU)
	d.Weft("add-flow", "in_port=2,actions=output:1")
	return d, a, b
}

func meterStats(t *testing.T, d *lab.Daemon, meter int) api.Meter {
	t.Helper()
	var list []api.Meter
	d.WeftJSON(&list, "meter-stats", fmt.Sprint("meter=", meter))
	if len(list) != 1 || len(list[0].Bands) != 1 {
		t.Fatalf("meter %d: %+v", meter, list)
	}
	return list[0]
}

// A meter with a rate in packets per second first passes its burst, and then its rate.
// Drops are counted by meter, band, port and reason. The flow counts all frames.
func TestMeterOfFrames(t *testing.T) {
	d, a, b := twoGuests(t)
	const rate, burst, count = 10, 30, 300
	d.Weft("add-meter", fmt.Sprintf("meter=1 pktps burst stats bands=type=drop rate=%d burst_size=%d", rate, burst))
	d.Weft("add-flow", "priority=10,in_port=1,udp,actions=meter:1,output:2")
	sink, begin := b.Raw("eth0"), time.Now()
	send(t, a.Raw("eth0"), udpFrame(t, 4001, 120), count)
	eventually(t, func() error {
		if m := meterStats(t, d, 1); m.Packets != count {
			return fmt.Errorf("the meter has seen %d frames of %d", m.Packets, count)
		}
		return nil
	})
	elapsed := time.Since(begin)
	m := meterStats(t, d, 1)
	dropped := m.Bands[0].Packets
	passed := count - dropped
	if most := burst + uint64(elapsed.Seconds()*rate) + 1; passed < burst || passed > most {
		t.Errorf("%d frames passed in %v, want %d to %d", passed, elapsed, burst, most)
	}
	if m.Bytes != count*120 || m.Bands[0].Bytes != dropped*120 || m.Flows != 1 {
		t.Errorf("%+v: bytes of %d frames of 120, and one flow", m, count)
	}
	if n := received(t, sink, 4001, 4001, int(passed)); uint64(n) != passed {
		t.Errorf("%d frames arrived, %d passed", n, passed)
	}
	if frames, octets := packets(t, d, "meter:1"); frames != count || octets != count*120 {
		t.Errorf("the flow counts %d frames and %d bytes of %d", frames, octets, count)
	}
	if n := drops(d, "meter"); n != dropped {
		t.Errorf("%d drops under meter, %d by the band", n, dropped)
	}
	if text := d.Weft("meter-stats", "meter=1"); !strings.Contains(text, fmt.Sprintf("packet_in_count:%d ", count)) ||
		!strings.Contains(text, fmt.Sprintf("0: packet_count:%d byte_count:%d", dropped, dropped*120)) {
		t.Errorf("meter-stats shows\n%s", text)
	}

	// deleting a meter deletes its flows
	d.Weft("mod-meter", "meter=1 pktps bands=type=drop rate=1000000")
	before := meterStats(t, d, 1).Bands[0].Packets
	send(t, a.Raw("eth0"), udpFrame(t, 4002, 120), 50)
	if n := received(t, sink, 4002, 4002, 50); n != 50 || meterStats(t, d, 1).Bands[0].Packets != before {
		t.Errorf("%d of 50 frames arrived with a rate of 1,000,000", n)
	}
	d.Weft("del-meters", "meter=1")
	if text := d.Weft("dump-flows"); strings.Contains(text, "meter") {
		t.Errorf("flows without their meter:\n%s", text)
	}
}

// A meter with a rate in kbit/s limits iperf3 to exactly this rate. Pings do not go
// through the meter.
func TestMeterOfBits(t *testing.T) {
	d, a, b := twoGuests(t)
	const kilobits, burst = 4000, 400
	d.Weft("add-meter", fmt.Sprintf("meter=7 kbps burst bands=type=drop rate=%d burst_size=%d", kilobits, burst))
	d.Weft("add-flow", "priority=10,in_port=1,udp,actions=meter:7,output:2")
	d.Weft("add-flow", "priority=1,in_port=1,actions=output:2")
	begin := time.Now()
	f, err := lab.Iperf(a, b, "10.0.0.2", 2, "-u", "-b", "20M", "-l", "1000")
	if err != nil {
		t.Fatal(err)
	}
	lab.MustPing(t, a, "10.0.0.2", 5, "-i", "0.2")
	elapsed := time.Since(begin)
	m := meterStats(t, d, 7)
	passed := m.Bytes - m.Bands[0].Bytes
	if most := uint64((burst+kilobits*elapsed.Seconds())*1000/8) + guestMTU; passed > most || passed < burst*1000/8 {
		t.Errorf("%d bytes passed in %v, want %d to %d", passed, elapsed, burst*1000/8, most)
	}
	// the tap's queue may overflow while the switch gets no CPU time
	lost, err := strconv.Atoi(strings.TrimSpace(a.Run("cat", "/sys/class/net/eth0/statistics/tx_dropped")))
	if err != nil || m.Bands[0].Packets == 0 || int(m.Packets) < f.Datagrams-lost {
		t.Errorf("iperf3 sent %d datagrams, the tap dropped %d (%v), the meter: %+v", f.Datagrams, lost, err, m)
	}
	if frames, octets := packets(t, d, "meter:7"); frames != m.Packets || octets != m.Bytes {
		t.Errorf("the flow counts %d frames and %d bytes, the meter %+v", frames, octets, m)
	}
	if n := drops(d, "meter"); n != m.Bands[0].Packets {
		t.Errorf("%d drops under meter, %d by the band", n, m.Bands[0].Packets)
	}
}
