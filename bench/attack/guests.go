// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/packet"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// This file has the attacks that a guest makes with the frames that it sends.

func guestAttacks() []*attack {
	return []*attack{
		{name: "frame-flood", attacker: "guest", summary: "sends as much as it can, to itself",
			setup: sender(echoes, vhosttest.Options{Num: 1024}), play: flood(func(p *play, f []byte) []byte { return f[:64] })},
		{name: "miss-flood", attacker: "guest", summary: "frames of which every one misses, under masks of many kinds",
			setup: missSetup, play: flood(anyFlow)},
		{name: "heavy-misses", attacker: "guest", summary: "frames of which every one misses, in a pipeline of 2,000 resubmits to a flow of 60 actions",
			setup: heavySetup, play: flood(anyFlow)},
		{name: "mac-flood", memory: megaflowBytes(), attacker: "guest", summary: "invents source addresses without end",
			setup: member(fmt.Sprint("vni=", memberVNI)), play: flood(inventedSource)},
		{name: "mac-of-another-vni", exclusive: true, attacker: "guest", summary: "sends as a bystander of another VNI",
			setup: member("vni=5"), play: flood(bystandersSource)},
		{name: "ct-flood", attacker: "guest", summary: "two guests fill the table of connections with answered ones",
			setup: ctTableSetup, play: ctFlood, check: newConnections},
		{name: "ct-zone-flood", attacker: "guest", summary: "two guests fill a zone that has its own limit with answered connections",
			setup: ctZoneSetup, play: ctFlood, check: newConnections},
		{name: "fragment-flood", attacker: "guest", summary: "first, middle and overlapping fragments of datagrams that never end",
			setup: sender("ip,actions=ct(commit,zone=3),in_port", vhosttest.Options{Num: 1024}), play: flood(fragment)},
		{name: "malformed-frames", attacker: "guest", summary: "headers that contradict themselves and the frame",
			setup: func(p *play) error {
				if err := sender(echoes, vhosttest.Options{Num: 1024})(p); err != nil {
					return err
				}
				return p.flow("priority=60,in_port=" + p.name + ",ip,actions=ct(zone=3),in_port")
			}, play: flood(malformed)},
		{name: "hostile-offloads", attacker: "guest", summary: "virtio-net headers that lie, through dec_ttl and push_vlan into VXLAN",
			setup: offloadSetup, play: hostileOffloads},
		{name: "no-neighbour", attacker: "guest", summary: "frames into a tunnel whose next hop does not answer",
			setup: neighbourSetup, play: flood(func(p *play, f []byte) []byte { return f[:64] })},
		{name: "large-frames", attacker: "guest", summary: "frames of 64 KiB that are cut for the uplink",
			setup: offloadSetup, play: largeFrames},
		{name: "small-segments", attacker: "guest", summary: "frames of 64 KiB that are cut into segments of 33 bytes, from 16 queues",
			setup: smallSegments, play: cutSmall, exclusive: true},
	}
}

// megaflowBytes returns by how many bytes the megaflows of one guest may make the control process grow.
// The result is a twentieth of the machine's memory, but at least 512 MiB. By default, all megaflows
// together may take twice this much.
func megaflowBytes() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 512 << 20
	}
	return max(512<<20, int64(info.Totalram)*int64(info.Unit)/20)
}

// sender returns a setup function that adds a vhost-user port, with an OpenFlow flow for the frames
// from it. The attacker's guest is attached to the port until the attack ends.
func sender(flow string, o vhosttest.Options, options ...string) func(p *play) error {
	return func(p *play) error {
		socket, err := p.port("", flow, options...)
		if err != nil {
			return err
		}
		return p.attach("guest", socket, o)
	}
}

func (p *play) attach(name, socket string, o vhosttest.Options) error {
	g, err := p.guest(socket, o)
	if err != nil {
		return err
	}
	p.vars[name] = g
	p.later(g.close)
	return p.up(p.name)
}

// member returns a setup function like that of sender. The flow of its port has the action normal, so
// the switch learns the attacker's MAC addresses.
func member(options ...string) func(p *play) error {
	return func(p *play) error {
		if err := sender("actions=normal", vhosttest.Options{Num: 1024}, options...)(p); err != nil {
			return err
		}
		for range 20 {
			p.own("guest").send(ether(attackerMAC, attackerMAC, 0x88b5, 64))
			p.own("guest").flush()
			time.Sleep(2 * time.Millisecond)
		}
		p.wrong.Store(0)
		return nil
	}
}

func (p *play) up(name string) error {
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		show, err := p.site.client.Show()
		if err != nil {
			return err
		}
		if portState(&show, name) == "up" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("port %s is %q", name, portState(&show, name))
		}
	}
}

func (p *play) own(name string) *guest { return p.vars[name].(*guest) }

func flood(frame func(p *play, f []byte) []byte) func(p *play) error {
	return func(p *play) error {
		g := p.own("guest")
		buf := make([]byte, 1514)
		for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
			for range 64 {
				if !g.send(frame(p, buf)) {
					break
				}
			}
			g.flush()
		}
		return nil
	}
}

// MAC addresses in frames of the attackers.
var (
	attackerMAC = [6]byte{2, 0xff, 0, 0, 0, 1}
	nobodysMAC  = [6]byte{2, 0xff, 0, 0, 0, 2}
)

func put(f []byte, dst, src [6]byte, kind uint16) {
	copy(f, dst[:])
	copy(f[6:], src[:])
	binary.BigEndian.PutUint16(f[12:], kind)
}

func randomMAC(r *rand.Rand) (mac [6]byte) {
	binary.BigEndian.PutUint32(mac[2:], r.Uint32())
	mac[0], mac[1] = 2, byte(r.Uint32())
	return mac
}

// inventedSource builds a frame with a random source address, which the switch then learns.
func inventedSource(p *play, f []byte) []byte {
	put(f, attackerMAC, randomMAC(p.rng), 0x88b5)
	if p.rng.IntN(1000) == 0 {
		copy(f[6:], attackerMAC[:])
	}
	return f[:64]
}

func bystandersSource(p *play, f []byte) []byte {
	put(f, attackerMAC, vhosttest.LoadMAC(p.rng.IntN(2)), 0x88b5)
	if p.rng.IntN(4) == 0 {
		copy(f[6:], attackerMAC[:])
	}
	return f[:64]
}

func ipv4(f []byte, src, dst uint32, proto byte, n int) []byte {
	put(f, nobodysMAC, attackerMAC, 0x0800)
	ip := f[14:34]
	clear(ip)
	ip[0], ip[8], ip[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(n-14))
	binary.BigEndian.PutUint32(ip[12:], src)
	binary.BigEndian.PutUint32(ip[16:], dst)
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip))
	return f[:n]
}

func udp(f []byte, src, dst uint32, sport, dport uint16, n int) []byte {
	binary.BigEndian.PutUint16(f[34:], sport)
	binary.BigEndian.PutUint16(f[36:], dport)
	binary.BigEndian.PutUint16(f[38:], uint16(n-34))
	binary.BigEndian.PutUint16(f[40:], 0)
	return ipv4(f, src, dst, 17, n)
}

func missSetup(p *play) error {
	if err := sender("actions=in_port", vhosttest.Options{Num: 1024})(p); err != nil {
		return err
	}
	// These 60 flows match different fields under different masks, so that each translation of a cache
	// miss takes long.
	for i, match := range []string{"ip,nw_src=10.0.0.0/%d", "ip,nw_dst=10.0.0.0/%d", "udp,tp_src=0x%x/0xff00", "udp,tp_dst=0x%x/0xfff0", "ip,nw_tos=%d"} {
		for n := range 12 {
			arg := []int{8 + 2*n, 8 + 2*n, 0x100 * n, 0x10 * n, 4 * n}[i]
			if err := p.flow(fmt.Sprintf("priority=%d,in_port=%s,"+match+",actions=in_port", 60+12*i+n, p.name, arg)); err != nil {
				return err
			}
		}
	}
	return nil
}

// heavySetup adds flows with which the translation of each of the attacker's frames takes as long as the
// switch allows.
func heavySetup(p *play) error {
	if err := sender("udp,actions=in_port", vhosttest.Options{Num: 1024})(p); err != nil {
		return err
	}
	table := 100 + p.site.number(p.name)%100
	loads := strings.Repeat("load:1->NXM_NX_REG0[],", 60)
	if err := p.flow(fmt.Sprintf("table=%d,priority=1,actions=%sload:1->NXM_NX_REG1[]", table, loads)); err != nil {
		return err
	}
	// this flow makes megaflows match addresses and ports, so that each new frame is a cache miss
	if err := p.flow(fmt.Sprintf("table=%d,priority=2,udp,nw_src=10.255.255.255,nw_dst=10.255.255.255,tp_src=1,tp_dst=1,actions=drop", table)); err != nil {
		return err
	}
	return p.flow(fmt.Sprintf("priority=70,in_port=%s,udp,actions=%sin_port", p.name, strings.Repeat(fmt.Sprintf("resubmit(,%d),", table), 2000)))
}

func anyFlow(p *play, f []byte) []byte {
	udp(f, 0x0a000000|p.rng.Uint32()>>8, 0x0a000000|p.rng.Uint32()>>8, uint16(p.rng.Uint32()), uint16(p.rng.Uint32()), 64)
	f[15] = byte(p.rng.Uint32()) &^ 3
	ip := f[14:34]
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip))
	return f[:64]
}

// ctMost limits the connections of the whole table, ctZoneMost those of the flooded zone. Both are low,
// so that a flood reaches them soon.
const (
	ctMost     = 5_000
	ctZoneMost = 2_000
)

// ctTableSetup limits the connection table. Two guests flood one zone, and a third guest uses another
// zone.
func ctTableSetup(p *play) error {
	before, err := p.site.client.Conntrack()
	if err != nil {
		return err
	}
	most, was := uint32(ctMost), uint32(before.MaxConnections)
	if err := p.site.client.ChangeConntrack(api.ChangeConntrack{MaxConnections: &most}); err != nil {
		return err
	}
	p.later(func() { _ = p.site.client.ChangeConntrack(api.ChangeConntrack{MaxConnections: &was}) })
	return ctSetup(p, 3, 4)
}

// ctZoneSetup limits a zone, which two guests flood and a third guest uses too.
func ctZoneSetup(p *play) error {
	const zone = 5
	limits := []api.ZoneLimit{{Zone: zone, Limit: ctZoneMost}}
	if err := p.site.client.ChangeConntrack(api.ChangeConntrack{Limits: limits}); err != nil {
		return err
	}
	p.later(func() { _ = p.site.client.ChangeConntrack(api.ChangeConntrack{ClearLimits: []uint16{zone}}) })
	return ctSetup(p, zone, zone)
}

// ctSetup attaches two guests that flood a zone with connections, and a third guest in the zone
// thirdZone.
func ctSetup(p *play, zone, thirdZone int) error {
	p.later(func() {
		p.site.daemon.TryWeft("flush-conntrack", fmt.Sprint("zone=", zone))
		p.site.daemon.TryWeft("flush-conntrack", fmt.Sprint("zone=", thirdZone))
	})
	for _, side := range []string{"-0", "-1"} {
		socket, err := p.port(side, "")
		if err != nil {
			return err
		}
		g, err := p.guest(socket, vhosttest.Options{Num: 1024, BufLen: 256})
		if err != nil {
			return err
		}
		p.vars["guest"+side] = g
		p.later(g.close)
		if err := p.up(p.name + side); err != nil {
			return err
		}
	}
	for i, side := range []string{"-0", "-1"} {
		if err := p.flow(fmt.Sprintf("priority=50,in_port=%s%s,udp,actions=ct(commit,zone=%d),output:%s-%d", p.name, side, zone, p.name, 1-i)); err != nil {
			return err
		}
	}
	socket, err := p.port("-2", fmt.Sprintf("udp,actions=ct(commit,zone=%d),in_port", thirdZone))
	if err != nil {
		return err
	}
	g, err := p.guest(socket, vhosttest.Options{})
	if err != nil {
		return err
	}
	p.vars["other"] = g
	p.later(g.close)
	return p.up(p.name + "-2")
}

// ctFlood opens new tracked UDP connections between two guests, and answers each of them.
func ctFlood(p *play) error {
	one, two := p.own("guest-0"), p.own("guest-1")
	f := make([]byte, 64)
	n, _ := p.vars["sent"].(uint32)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		for range 16 {
			n++
			if !one.send(udp(f, 0x0a010000|n>>16, 0x0a020001, uint16(n), 7, 64)) {
				break
			}
		}
		one.flush()
		// guest two answers, because a full table evicts connections without an answer first
		for came, late := 0, time.Now().Add(50*time.Millisecond); came < 16 && time.Now().Before(late); {
			frame, _, ok := two.Rx[0].Recv(two.frame[:0])
			if !ok {
				time.Sleep(20 * time.Microsecond)
				continue
			}
			came++
			if two.frame = frame; len(frame) == 64 {
				src, dst := binary.BigEndian.Uint32(frame[26:]), binary.BigEndian.Uint32(frame[30:])
				two.Tx[0].Send(udp(f, dst, src, binary.BigEndian.Uint16(frame[36:]), binary.BigEndian.Uint16(frame[34:]), 64))
			}
		}
		two.Rx[0].Refill()
		two.Tx[0].Publish()
		for came, late := 0, time.Now().Add(50*time.Millisecond); came < 16 && time.Now().Before(late); {
			came += one.drain()
		}
	}
	p.vars["sent"] = n
	return nil
}

// newConnections fails unless the switch tracks a hundred new connections of a guest that does not
// attack.
func newConnections(p *play) error {
	g := p.own("other")
	f := make([]byte, 64)
	g.drain()
	came := 0
	for i := range 100 {
		g.send(udp(f, 0x0a030001, 0x0a040001, uint16(1000+i), uint16(p.rng.Uint32()), 64))
		g.Tx[0].Publish()
		time.Sleep(time.Millisecond)
		came += g.drain()
	}
	for end := time.Now().Add(2 * time.Second); came < 100 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		came += g.drain()
	}
	if show, err := p.site.client.Conntrack(); err == nil {
		p.notes = fmt.Sprintf("%d of %d connections, %d evicted, %d refused", show.Connections, show.MaxConnections, show.Evicted, show.RefusedLimit)
	}
	if came < 100 {
		return fmt.Errorf("a port without connections gets %d of 100 new ones", came)
	}
	return nil
}

func fragment(p *play, f []byte) []byte {
	n := 64 + 8*p.rng.IntN(40)
	ipv4(f, 0x0a000001, 0x0a000002, 17, n)
	ip := f[14:34]
	binary.BigEndian.PutUint16(ip[4:], uint16(p.rng.Uint32()))
	offset := uint16(p.rng.IntN(64))
	if p.rng.IntN(3) == 0 {
		offset = 0
	}
	if p.rng.IntN(10) > 0 {
		offset |= 0x2000
	}
	binary.BigEndian.PutUint16(ip[6:], offset)
	ip[10], ip[11] = 0, 0
	binary.BigEndian.PutUint16(ip[10:], packet.Checksum(ip))
	return f[:n]
}

var kinds = []uint16{0x0800, 0x86dd, 0x0806, 0x8100, 0x88a8, 0x88b5, 0x0003}

// malformed builds a frame with a known EtherType and a random length. Random places of its headers have
// random bytes.
func malformed(p *play, f []byte) []byte {
	n := 14 + p.rng.IntN(300)
	udp(f, 0x0a000001, 0x0a000002, 1, 2, max(n, 64))
	put(f, nobodysMAC, attackerMAC, kinds[p.rng.IntN(len(kinds))])
	for range 1 + p.rng.IntN(8) {
		f[14+p.rng.IntN(60)] = byte(p.rng.Uint32())
	}
	return f[:n]
}

const offloading = plainFeatures | vhost.FeatureChecksum | vhost.FeatureHostTSO4 | vhost.FeatureHostTSO6

func offloadSetup(p *play) error {
	socket, err := p.port("", "")
	if err != nil {
		return err
	}
	if err := p.flow("priority=51,in_port=" + p.name + ",ip,actions=dec_ttl,push_vlan:0x8100,set_field:5->vlan_vid,output:overlay"); err != nil {
		return err
	}
	if err := p.flow("priority=50,in_port=" + p.name + ",actions=push_vlan:0x88a8,output:overlay"); err != nil {
		return err
	}
	return p.attach("guest", socket, vhosttest.Options{Num: 64, BufLen: 70_000, Features: offloading})
}

func hostileOffloads(p *play) error {
	g := p.own("guest")
	f := make([]byte, 65_000)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		for range 32 {
			var vnet [12]byte
			for i := range 10 {
				if p.rng.IntN(3) > 0 {
					vnet[i] = byte(p.rng.Uint32())
				}
			}
			if p.rng.IntN(2) == 0 {
				vnet[0], vnet[1] = 1, byte(p.rng.IntN(6)) // a plausible virtio-net header
				binary.LittleEndian.PutUint16(vnet[2:], uint16(54))
				binary.LittleEndian.PutUint16(vnet[4:], uint16(p.rng.IntN(2000)))
				binary.LittleEndian.PutUint16(vnet[6:], uint16(34))
				binary.LittleEndian.PutUint16(vnet[8:], uint16([]int{6, 16}[p.rng.IntN(2)]))
			}
			n := 64 + p.rng.IntN(3000)
			if p.rng.IntN(8) == 0 {
				n = 64 + p.rng.IntN(64_000)
			}
			ipv4(f, 0x0a000001, 0x0a000002, 6, n)
			f[46] = byte(p.rng.IntN(16) << 4)
			f[22] = byte(p.rng.IntN(3))
			if p.rng.IntN(3) == 0 {
				f[14+p.rng.IntN(40)] = byte(p.rng.Uint32())
			}
			if !g.sendHeaded(vnet, f[:n]) {
				break
			}
		}
		g.flush()
	}
	return nil
}

// tcpToCut returns a TCP frame of 65,000 bytes. Its virtio-net header asks the switch to cut the payload
// into segments of segmentSize bytes.
func tcpToCut(segmentSize uint16) (vnet [12]byte, frame []byte) {
	f := make([]byte, 65_000)
	ipv4(f, 0x0a000001, 0x0a000002, 6, len(f))
	f[46] = 5 << 4
	vnet = [12]byte{1, 1}
	binary.LittleEndian.PutUint16(vnet[2:], 54)
	binary.LittleEndian.PutUint16(vnet[4:], segmentSize)
	binary.LittleEndian.PutUint16(vnet[6:], 34)
	binary.LittleEndian.PutUint16(vnet[8:], 16)
	return vnet, f
}

// largeFrames sends valid TCP frames of 64 KiB, which the switch must cut into segments for the uplink.
func largeFrames(p *play) error {
	g := p.own("guest")
	vnet, f := tcpToCut(536)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
		for range 32 {
			if !g.sendHeaded(vnet, f) {
				break
			}
		}
		g.flush()
	}
	return nil
}

// segmentQueues is the number of queues of the attack with small segments. segmentBytes is the smallest
// segment size for which the switch cuts 65,000 bytes (maxSegments in packet/offload.go).
const (
	segmentQueues = 16
	segmentBytes  = 33
)

func smallSegments(p *play) error {
	socket, err := p.port("", "actions=output:overlay", fmt.Sprint("queues=", segmentQueues))
	if err != nil {
		return err
	}
	return p.attach("guest", socket, vhosttest.Options{Pairs: segmentQueues, Num: 16, BufLen: 70_000, Features: offloading | vhost.FeatureMultiQueue})
}

// cutSmall keeps all transmit queues full of frames that the switch must cut into small segments.
func cutSmall(p *play) error {
	g := p.own("guest")
	vnet, f := tcpToCut(segmentBytes)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		for _, q := range g.Tx {
			for q.SendHeaded(vnet, f) {
			}
			q.Publish()
		}
	}
	return nil
}

// neighbourSetup attaches a guest whose frames go into a tunnel to an underlay address that no host has,
// so that the switch asks for the neighbour in vain.
func neighbourSetup(p *play) error {
	if err := p.addPort(p.name+"-t", "type=vxlan", "vni=200", "remote=172.16.0.77"); err != nil {
		return err
	}
	return sender("actions=output:"+p.name+"-t", vhosttest.Options{Num: 1024})(p)
}

const uplinkFrames = 320

// uplinkSends fails unless the frames of a guest that does not attack arrive at the underlay peer.
func uplinkSends(p *play) error {
	socket, err := p.port("-out", "actions=output:overlay")
	if err != nil {
		return err
	}
	g, err := p.guest(socket, vhosttest.Options{})
	if err != nil {
		return err
	}
	defer g.close()
	if err := p.up(p.name + "-out"); err != nil {
		return err
	}
	var peer *net.UDPConn // a UDP socket counts exactly: the device may count several datagrams as one large frame
	err = p.site.peer.Do(func() (err error) {
		peer, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(peerIP), Port: 4789})
		return err
	})
	if err != nil {
		return err
	}
	defer peer.Close()
	_ = peer.SetReadDeadline(time.Now().Add(5 * time.Second))
	arrived := make(chan int)
	go func() {
		came, b := 0, make([]byte, 2000)
		for came < uplinkFrames {
			n, err := peer.Read(b)
			if err != nil {
				break
			}
			if n == 208 && binary.BigEndian.Uint16(b[20:]) == 0x88b6 {
				came++
			}
		}
		arrived <- came
	}()
	frame := ether(nobodysMAC, attackerMAC, 0x88b6, 200)
	for i := range uplinkFrames {
		g.send(frame)
		g.flush()
		if i%16 == 15 {
			time.Sleep(2 * time.Millisecond)
		}
	}
	came := <-arrived
	if came < uplinkFrames {
		return fmt.Errorf("another guest gets %d of %d frames out through the uplink", came, uplinkFrames)
	}
	return nil
}
