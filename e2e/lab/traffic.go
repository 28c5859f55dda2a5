// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Pings is the report of a ping.
type Pings struct {
	Sent, Received int
	AvgMS          float64 // mean round-trip time; 0: no answers
}

var (
	pingCounts = regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`)
	pingTimes  = regexp.MustCompile(`(?:rtt|round-trip) min/avg/max/\w+ = [\d.]+/([\d.]+)/`)
)

// Ping sends "count" echo requests, one every 0.2 s. args are further arguments of the program
// ping. After the last request, ping waits for one more interval, or for a second if there was
// no answer. Use PingAll if all requests must be answered.
func Ping(from Guest, dst string, count int, args ...string) (Pings, error) {
	out, err := from.Try(append([]string{"ping", "-n", "-q", "-i", "0.2", "-W", "1", "-c", fmt.Sprint(count)}, append(args, dst)...)...)
	p, ok := parsePing(out)
	if !ok {
		return p, fmt.Errorf("%s: ping %s: %w", from, dst, err)
	}
	return p, nil
}

func parsePing(text string) (p Pings, ok bool) {
	m := pingCounts.FindStringSubmatch(text)
	if m == nil {
		return p, false
	}
	p.Sent, _ = strconv.Atoi(m[1])
	p.Received, _ = strconv.Atoi(m[2])
	if m := pingTimes.FindStringSubmatch(text); m != nil {
		p.AvgMS, _ = strconv.ParseFloat(m[1], 64)
	}
	return p, true
}

// PingAll sends "count" echo requests, one every 0.2 s, and waits for their answers, for at
// most pingLimit. While answers are missing, ping sends further requests, which do not count.
func PingAll(from Guest, dst string, count int, args ...string) (Pings, error) {
	out, err := from.Try(append([]string{"ping", "-n", "-i", "0.2", "-w", fmt.Sprint(pingLimit.Seconds()), "-c", fmt.Sprint(count)}, append(args, dst)...)...)
	p, ok := parsePings(out, count)
	if !ok {
		return p, fmt.Errorf("%s: ping %s: %w", from, dst, err)
	}
	return p, nil
}

// pingLimit is the time limit of PingAll. It is shorter than tryLimit, the limit of a command.
const pingLimit = 30 * time.Second

// Pinging is a ping that runs in the background.
type Pinging struct {
	proc  *Process
	dst   string
	count int
}

// lateReply is the delay with which a reply still counts. ping itself waits for the last reply
// only as long as its interval, and a busy machine may answer later.
const lateReply = time.Second

// StartPings starts a ping that sends "count" echo requests in the background. "interval" is the time
// between two requests in seconds. After them, ping sends further requests for the time lateReply, so
// that it still receives late answers. Wait does not count the further requests.
func (h *Host) StartPings(dst string, count int, interval float64) *Pinging {
	h.lab.T.Helper()
	return &Pinging{h.Start(pings(dst, count, interval)...), dst, count}
}

func pings(dst string, count int, interval float64) []string {
	further := int(math.Ceil(lateReply.Seconds() / interval))
	return []string{"ping", "-n", "-i", fmt.Sprint(interval), "-c", fmt.Sprint(count + further), dst}
}

// Pings runs a ping in a virtual machine until it ends, and counts the answers to the first "count"
// requests.
func (vm *VM) Pings(dst string, count int, interval float64) (Pings, error) {
	out, err := vm.Try(pings(dst, count, interval)...)
	counts, ok := parsePings(out, count)
	if !ok {
		return counts, fmt.Errorf("%s: ping %s: %w", vm, dst, err)
	}
	return counts, nil
}

// Wait waits until ping has ended, at most for "limit" plus lateReply. It counts the answers to the
// requests of StartPings.
func (p *Pinging) Wait(limit time.Duration) (Pings, error) {
	err := p.proc.Wait(limit + lateReply)
	counts, ok := parsePings(p.proc.Output(), p.count)
	if !ok {
		return counts, fmt.Errorf("ping %s: %v: %s", p.dst, err, p.proc.Output())
	}
	return counts, nil
}

var pingReply = regexp.MustCompile(`(?m)^\d+ bytes from .* icmp_seq=(\d+) `)

// parsePings reads the output of ping, and returns how many of the first "count" requests were
// answered.
func parsePings(text string, count int) (p Pings, ok bool) {
	if p, ok = parsePing(text); !ok {
		return p, false
	}
	answered := map[string]bool{}
	for _, m := range pingReply.FindAllStringSubmatch(text, -1) {
		if n, _ := strconv.Atoi(m[1]); n <= count {
			answered[m[1]] = true
		}
	}
	p.Sent, p.Received = min(p.Sent, count), len(answered)
	return p, true
}

// WaitPing sends echo requests until an answer arrives, for at most limit.
func WaitPing(from Guest, dst string, limit time.Duration, args ...string) error {
	var last error
	for end := time.Now().Add(limit); time.Now().Before(end); {
		p, err := Ping(from, dst, 1, args...)
		if err == nil && p.Received > 0 {
			return nil
		}
		if last = err; err == nil {
			last = fmt.Errorf("%s: no answer from %s in %v", from, dst, limit)
		} else {
			time.Sleep(100 * time.Millisecond)
		}
	}
	return last
}

// Flood is the result of one run of iperf3.
type Flood struct {
	BitsPerSecond float64 // rate at the receiver
	Retransmits   int     // TCP only
	LostPercent   float64 // UDP only
	Datagrams     int     // number sent, UDP only
}

// iperfReport has those fields of iperf3's JSON report that the lab uses.
type iperfReport struct {
	Error string
	End   struct {
		SumSent struct {
			Retransmits int
			Packets     int
		} `json:"sum_sent"`
		SumReceived struct {
			BitsPerSecond float64 `json:"bits_per_second"`
		} `json:"sum_received"`
		Sum struct { // UDP only
			BitsPerSecond float64 `json:"bits_per_second"`
			Packets       int
			LostPercent   float64 `json:"lost_percent"`
		}
	}
}

// iperfServers counts the iperf3 servers that were started. Each server has its own
// port, because tests run in parallel.
var iperfServers atomic.Int32

// ServeIperf starts an iperf3 server for one connection.
func (h *Host) ServeIperf(port string) {
	h.lab.T.Helper()
	h.Spawn("iperf3", "-s", "-1", "-p", port)
	for end := time.Now().Add(startLimit); ; time.Sleep(20 * time.Millisecond) {
		out, err := h.Try("ss", "-ltnH", "sport = :"+port)
		if err == nil && strings.TrimSpace(out) != "" {
			return
		}
		if time.Now().After(end) {
			h.lab.T.Fatalf("%s: iperf3 does not listen on port %s: %v", h.Name, port, err)
		}
	}
}

// Iperf runs iperf3 from client to server. addr is the server's address. args are
// further arguments of the client, such as "-u" and "-R".
func Iperf(client, server Guest, addr string, seconds int, args ...string) (Flood, error) {
	port := fmt.Sprint(5200 + iperfServers.Add(1))
	server.Spawn("iperf3", "-s", "-1", "-p", port)
	command := append([]string{"iperf3", "-c", addr, "-p", port, "-t", fmt.Sprint(seconds), "-J", "--connect-timeout", "10000"}, args...)
	var report iperfReport
	for end := time.Now().Add(startLimit); ; time.Sleep(100 * time.Millisecond) {
		out, err := client.Try(command...)
		report = iperfReport{}
		if json.Unmarshal([]byte(out), &report) != nil {
			return Flood{}, fmt.Errorf("%s: iperf3 to %s: %w", client, server, err)
		}
		if report.Error == "" {
			break
		}
		// The server may not listen yet.
		if !strings.Contains(report.Error, "refused") || time.Now().After(end) {
			return Flood{}, fmt.Errorf("%s: iperf3 to %s: %s", client, server, report.Error)
		}
	}
	f := Flood{BitsPerSecond: report.End.SumReceived.BitsPerSecond, Retransmits: report.End.SumSent.Retransmits}
	if report.End.Sum.Packets > 0 {
		sum := report.End.Sum
		f.Datagrams, f.LostPercent = sum.Packets, sum.LostPercent
		if f.BitsPerSecond == 0 { // iperf3 before version 3.13 does not report sum_received for UDP
			f.BitsPerSecond = sum.BitsPerSecond * (1 - sum.LostPercent/100)
		}
	}
	return f, nil
}

func (f Flood) String() string {
	rate := fmt.Sprintf("%.0f Mb/s", f.BitsPerSecond/1e6)
	if f.BitsPerSecond >= 1e9 {
		rate = fmt.Sprintf("%.2f Gb/s", f.BitsPerSecond/1e9)
	}
	if f.Datagrams > 0 {
		return fmt.Sprintf("%s, %.2g %% of %d datagrams lost", rate, f.LostPercent, f.Datagrams)
	}
	return fmt.Sprintf("%s, %d retransmits", rate, f.Retransmits)
}
