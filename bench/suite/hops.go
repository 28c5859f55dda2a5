package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft/api"
	"weft/bench/hops"
	"weft/internal/cpu"
)

// Where the time of one datagram goes, the job of the recordings in bench/hops: a
// UDP datagram of 1,400 bytes is tracked, translated (NAT), filtered, put into
// VXLAN and sent. Linux: from a socket of the host to its vxlan device; the time
// is that of the whole sendto, and its parts are perf's shares of it. Weft: from
// the tap on; the parts are the stages of the worker's pass, by its own clock,
// and what comes before the tap is the guest's. Both send into a veth.

// hopsSize is the payload of the datagrams.
const hopsSize = 1400

func hopsFamily() []*experiment {
	var list []*experiment
	for _, e := range []struct {
		variant string
		peers   []string
	}{
		{hopsUnknown, []string{weftPeer}},
		{hopsAlone, []string{weftPeer}},
		{hopsNew, []string{weftPeer, linuxPeer}},
		{hopsLater, []string{weftPeer, linuxPeer}},
		{hopsVhost, []string{weftPeer}},
	} {
		list = append(list, &experiment{name: "hops/" + e.variant, unit: "s", less: true, peers: e.peers,
			do: func(r *run, peer string) (float64, error) {
				switch {
				case peer == linuxPeer:
					return linuxHops(r, e.variant)
				case e.variant == hopsVhost:
					return vhostHops(r)
				}
				return weftHops(r, e.variant)
			}})
	}
	return list
}

// Variants: a flow that the workers do not know, later frames of one that are
// alone in their batch, first frames of connections in a row, later frames in a
// row, and those from a guest with shared memory (vhost-user) instead of a tap.
const (
	hopsUnknown = "first frame, flow unknown"
	hopsAlone   = "later frame, alone"
	hopsNew     = "new connections in a row"
	hopsLater   = "later frames in a row"
	hopsVhost   = "later frames in a row, vhost guest"
)

const (
	hopsGuestIP, hopsPeerIP = "10.0.0.1", "10.0.0.2"
	hopsPeerMAC             = "02:00:00:00:00:02"
	hopsNewFlows            = 20_000 // connections made in a run
	hopsSingles             = 40     // frames sent one by one in a run
)

// hopsFlows are Weft's, with what the recordings' host had: connection tracking,
// NAT, and a filter by state.
const hopsFlows = `table=0,priority=10,udp,actions=ct(table=1,zone=7,nat)
table=0,priority=9,actions=drop
table=1,priority=10,ct_state=+trk+new,udp,actions=ct(commit,zone=7,nat(src=10.0.0.1)),output:vx
table=1,priority=10,ct_state=+trk+est,udp,actions=output:vx
`

func weftHops(r *run, variant string) (float64, error) {
	w, err := newSite(r)
	if err != nil {
		return 0, err
	}
	guest := "weftbench-g" + r.id
	if err := r.namespaces(guest); err != nil {
		return 0, err
	}
	sw := new(weft)
	if err := sw.up(r, setup{site: w, flows: func(func(int) string, string) []string { return []string{"priority=0,actions=drop"} }}); err != nil {
		return 0, err
	}
	flows := filepath.Join(r.dir, "hops.flows")
	if err := os.WriteFile(flows, []byte(hopsFlows), 0o644); err != nil {
		return 0, err
	}
	if err := sw.do("add-port g type=tap dev=eth0 netns="+guest+" mac=02:00:00:00:00:01 mtu=1450", "add-flows "+flows); err != nil {
		return 0, err
	}
	if err := eventually(5*time.Second, func() error { return addressHops("eth0", guest) }); err != nil {
		return 0, err
	}
	return traceHops(r, w, sw, guest, flows, variant)
}

// vhostHops has a guest send all it can, one connection. The time of a frame is
// that between two at the far end: the worker does nothing else.
func vhostHops(r *run) (float64, error) {
	w, err := newSite(r)
	if err != nil {
		return 0, err
	}
	sw := new(weft)
	g, err := r.upWithGuests(sw, setup{site: w, flows: func(func(int) string, string) []string {
		return strings.Split(strings.TrimSpace(hopsFlows), "\n")
	}}, "txonly", hopsSize)
	if err != nil {
		return 0, err
	}
	g.say("start")
	time.Sleep(warmUp)
	rate, err := w.rate(r.length)
	if err != nil {
		return 0, err
	}
	parts, err := stagesOf(r, sw, "udp,in_port="+guestName(0), func() error { return nil })
	if err != nil {
		return 0, err
	}
	return r.noteParts(parts, 1/rate), nil
}

// addressHops gives a device the guest's address, and the peer's as known.
func addressHops(dev, netns string) error {
	return all(nil, [][]string{
		{"ip", "-n", netns, "addr", "replace", hopsGuestIP + "/24", "dev", dev},
		{"ip", "-n", netns, "link", "set", dev, "up"},
		{"ip", "-n", netns, "neigh", "replace", hopsPeerIP, "lladdr", hopsPeerMAC, "dev", dev, "nud", "permanent"},
	})
}

// traceHops has the guest send while a live trace keeps the stages' times. Of
// frames in a row the time is the worker's own without a trace, which reads the
// clock at every stage; the trace tells its parts.
func traceHops(r *run, w *site, sw *weft, guest, flows, variant string) (float64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	send := func(args ...string) error {
		return all(nil, [][]string{in(guest, append([]string{self, hopsVerb, "-core", fmt.Sprint(guestCore)}, args...)...)})
	}
	if variant != hopsUnknown { // both ways through the tables are known
		if err := send("-count", "20", "-pause", "5ms"); err != nil {
			return 0, err
		}
	}
	work := func(again int) error {
		switch variant {
		case hopsAlone:
			return send("-count", fmt.Sprint(hopsSingles), "-pause", "2ms")
		case hopsNew:
			return send("-count", fmt.Sprint(hopsNewFlows), "-new", "-port", fmt.Sprint(11_000+again*hopsNewFlows))
		case hopsLater:
			return send("-count", fmt.Sprint(10*hopsNewFlows))
		}
		for i := range hopsSingles {
			if err := sw.do("del-flows", "add-flows "+flows); err != nil {
				return err
			}
			if err := send("-port", fmt.Sprint(11_000+i)); err != nil {
				return err
			}
		}
		return nil
	}
	if variant == hopsUnknown || variant == hopsAlone {
		parts, err := stagesOf(r, sw, hopsTap, func() error { return work(0) })
		if err != nil {
			return 0, err
		}
		return r.noteParts(parts, 0), nil
	}
	total, err := busyOf(w, sw, func() error { return work(0) })
	if err != nil {
		return 0, err
	}
	parts, err := stagesOf(r, sw, hopsTap, func() error { return work(1) })
	if err != nil {
		return 0, err
	}
	return r.noteParts(parts, total), nil
}

// busyOf is the seconds that the worker was busy for a frame that reached the far
// end while work went on.
func busyOf(w *site, sw *weft, work func() error) (float64, error) {
	before, err := sw.worker()
	if err != nil {
		return 0, err
	}
	arrivedBefore, err := w.total()
	if err != nil {
		return 0, err
	}
	if err := work(); err != nil {
		return 0, err
	}
	arrived, err := w.total()
	if err != nil {
		return 0, err
	}
	after, err := sw.worker()
	if err != nil {
		return 0, err
	}
	if arrived == arrivedBefore {
		return 0, errors.New("nothing reached the far end of the tunnel")
	}
	return float64(after.BusyNS-before.BusyNS) / 1e9 / float64(arrived-arrivedBefore), nil
}

// hopsTap matches the frames from the guest behind a tap.
const hopsTap = "udp,in_port=g"

// stagesOf traces the frames that match while work goes on, and returns the
// seconds that each stage took for a frame.
func stagesOf(r *run, sw *weft, match string, work func() error) (map[string]float64, error) {
	trace, err := r.start("trace", filepath.Join(r.bin, "weft"), "--socket", sw.socket, "--json", "trace", "--live", match, "-c", "0")
	if err != nil {
		return nil, err
	}
	time.Sleep(300 * time.Millisecond)
	if err := work(); err != nil {
		return nil, err
	}
	time.Sleep(300 * time.Millisecond)
	trace.stop()
	return addStages(trace.output())
}

// noteParts notes the hops of a frame, scaled to a total if there is one, and
// returns what they add up to.
func (r *run) noteParts(parts map[string]float64, total float64) float64 {
	sum := 0.0
	for _, part := range parts {
		sum += part
	}
	if total == 0 {
		total = sum
	}
	for hop, part := range parts {
		r.note(hop, "s", part/sum*total)
	}
	return total
}

// addStages adds up the stages of each batch that a trace saw, by the frames in
// it, and the time that frames waited for control. A frame that tracking looks up
// again is shown twice, with the times of the same batch.
func addStages(trace string) (map[string]float64, error) {
	type batch struct {
		worker int
		at     time.Time
	}
	seen, sums, flows, frames := map[batch]bool{}, map[string]float64{}, map[string]bool{}, 0
	scan := bufio.NewScanner(strings.NewReader(trace))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var c api.Captured
		if json.Unmarshal(scan.Bytes(), &c) != nil || c.Trace == nil || c.Verdict != api.VerdictSent {
			continue // the trace's own words, or the first of two look-ups
		}
		flow := c.Flow[strings.Index(c.Flow, "tp_dst="):]
		if c.HeldUS > 0 {
			sums["upcall"] += c.HeldUS / 1e6
			flows[flow] = true
		}
		if b := (batch{c.Worker, c.Time}); !seen[b] {
			seen[b] = true
			frames += c.Trace.Frames
			for _, s := range c.Trace.Stages {
				sums[s.Name] += float64(s.NS) / 1e9
			}
		}
	}
	if len(flows) > 0 { // alone each, in one pass for each time it was held
		frames = len(flows)
	}
	if frames == 0 {
		return nil, errors.New("the trace saw no frame that was sent: " + trace)
	}
	for stage := range sums {
		sums[stage] /= float64(frames)
	}
	return sums, nil
}

// linuxHops measures the way through the kernel on the site's host.
func linuxHops(r *run, variant string) (float64, error) {
	w, err := newSite(r)
	if err != nil {
		return 0, err
	}
	iptables := func(args ...string) []string { return in(w.netns, append([]string{"iptables-legacy"}, args...)...) }
	if err := all(nil, [][]string{
		w.ip("link", "add", "vx", "type", "vxlan", "id", "100", "local", w.local, "remote", w.remote, "dstport", "4789", "dev", w.dev),
		iptables("-t", "nat", "-A", "OUTPUT", "-m", "comment", "--comment", "as recorded", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "RETURN"),
		iptables("-t", "nat", "-A", "POSTROUTING", "-s", "192.168.99.0/24", "-j", "MASQUERADE"),
		iptables("-A", "OUTPUT", "-m", "conntrack", "--ctstate", "NEW,ESTABLISHED,RELATED", "-j", "ACCEPT"),
	}); err != nil {
		return 0, err
	}
	if err := addressHops("vx", w.netns); err != nil {
		return 0, err
	}
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	send := []string{self, hopsVerb, "-core", fmt.Sprint(switchCore), "-count", fmt.Sprint(hopsNewFlows)}
	if variant == hopsNew {
		send = append(send, "-new")
	} else {
		send[len(send)-1] = fmt.Sprint(10 * hopsNewFlows)
	}
	timed := in(w.netns, send...)
	out, err := command(nil, timed[0], timed[1:]...)
	if err != nil {
		return 0, err
	}
	m := regexp.MustCompile(`ns a datagram: (\S+)`).FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("no time: %s", out)
	}
	ns, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return 0, err
	}
	if variant == hopsNew { // other ports than those that are known now
		send = append(send, "-port", fmt.Sprint(10_000+hopsNewFlows))
	}
	return ns / 1e9, r.noteShares(w, send, ns/1e9)
}

// noteShares runs a command once more under perf and splits a time by the hops'
// shares of the samples.
func (r *run) noteShares(w *site, args []string, total float64) error {
	data := filepath.Join(r.dir, "perf.data")
	record := in(w.netns, append([]string{"perf", "record", "-q", "-e", "cpu-clock", "-F", "19997", "-g", "-o", data, "--"}, args...)...)
	if _, err := command(nil, record[0], record[1:]...); err != nil {
		return err
	}
	report, err := command(nil, "perf", "report", "--stdio", "--no-children", "--percent-limit", "0",
		"-g", "graph,0.0,callee,function,percent", "-i", data)
	if err != nil {
		return err
	}
	file := filepath.Join(r.dir, "linux.perf.txt")
	if err := os.WriteFile(file, []byte(report), 0o644); err != nil {
		return err
	}
	recording, err := hops.Read(file)
	if err != nil {
		return err
	}
	table, err := hops.NewTable()
	if err != nil {
		return err
	}
	ledger := table.Book(linuxPeer, recording.Unit, recording.Calls)
	for _, e := range ledger.Entries {
		r.note(e.Hop, "s", total*e.Value/ledger.Total)
	}
	return nil
}

// hopsVerb is the argument with which this program is the sender.
const hopsVerb = "send-datagrams"

func sendDatagrams(args []string) error {
	flags := flag.NewFlagSet(hopsVerb, flag.ContinueOnError)
	core := flags.Int("core", guestCore, "core to run on")
	count := flags.Int("count", 1, "datagrams")
	port := flags.Int("port", 10_000, "their destination's port, the first of them with -new")
	fresh := flags.Bool("new", false, "each to a port of its own, so that each is a new connection")
	pause := flags.Duration("pause", 0, "between two")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := cpu.Pin(*core); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	to := &unix.SockaddrInet4{Addr: netip.MustParseAddr(hopsPeerIP).As4(), Port: *port}
	payload := make([]byte, hopsSize)
	start := time.Now()
	for i := range *count {
		if *fresh {
			to.Port = *port + i
		}
		if err := unix.Sendto(fd, payload, 0, to); err != nil {
			return err
		}
		if *pause > 0 {
			time.Sleep(*pause)
		}
	}
	fmt.Printf("ns a datagram: %.1f\n", float64(time.Since(start).Nanoseconds())/float64(*count))
	return nil
}
