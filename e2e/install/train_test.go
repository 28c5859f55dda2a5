// SPDX-License-Identifier: Apache-2.0

package install

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// train is a series of pings, one every 10 ms, that runs in the background in a test machine.
type train struct {
	m   *machine
	log string // path in the test machine
}

// startTrain starts pings from the network namespace a, once a first ping is answered.
func (m *machine) startTrain(name, to string) *train {
	m.t.Helper()
	m.eventually("a ping passes", func() bool {
		_, err := m.try("ip", "netns", "exec", "a", "ping", "-c", "1", "-W", "1", to)
		return err == nil
	})
	tr := &train{m, "/tmp/" + name + ".log"}
	m.run("systemd-run", "--quiet", "--unit", name, "-p", "StandardOutput=file:"+tr.log,
		"ip", "netns", "exec", "a", "ping", "-n", "-i", "0.01", to)
	tr.progress()
	return tr
}

var answered = regexp.MustCompile(`icmp_seq=(\d+) .*time=([\d.]+) ms`)

// answers returns the sequence numbers of the pings that were answered, and the longest
// round trip.
func (tr *train) answers() (seqs []int, longest time.Duration) {
	for _, match := range answered.FindAllStringSubmatch(tr.m.read(tr.log), -1) {
		seq, _ := strconv.Atoi(match[1])
		ms, _ := strconv.ParseFloat(match[2], 64)
		seqs, longest = append(seqs, seq), max(longest, time.Duration(ms*float64(time.Millisecond)))
	}
	return seqs, longest
}

// progress waits until 20 further pings have been answered.
func (tr *train) progress() {
	tr.m.t.Helper()
	before, _ := tr.answers()
	tr.m.eventually("pings are answered", func() bool {
		now, _ := tr.answers()
		return len(now) >= len(before)+20
	})
}

// lost returns the number of lost pings. A ping is lost if it has no answer although a later
// ping has one; pings after the last answered one are still in flight. On a busy machine,
// ping's socket may drop answers. They do not count as lost.
func (tr *train) lost() (lost, sent int, longest time.Duration) {
	tr.m.t.Helper()
	tr.progress()
	seqs, longest := tr.answers()
	seen := map[int]bool{}
	for _, seq := range seqs {
		seen[seq] = true
		sent = max(sent, seq)
	}
	return sent - len(seen) - tr.m.noRoom(), sent, longest
}

// noRoom returns the number of frames that the ICMP sockets in the network namespace a have
// dropped because their buffers were full. It is the last column of the kernel's tables of
// these sockets.
func (m *machine) noRoom() (drops int) {
	m.t.Helper()
	for line := range strings.Lines(m.run("ip", "netns", "exec", "a", "cat", "/proc/net/raw", "/proc/net/icmp")) {
		fields := strings.Fields(line)
		n, _ := strconv.Atoi(fields[len(fields)-1]) // 0 in the headings
		drops += n
	}
	return drops
}

// read returns the content of a file in the test machine, "" if there is none.
func (m *machine) read(path string) string {
	data, _ := os.ReadFile("/proc/" + m.pid + "/root" + path)
	return string(data)
}

// write makes a file in the test machine.
func (m *machine) write(path, content string) {
	m.t.Helper()
	if err := os.WriteFile("/proc/"+m.pid+"/root"+path, []byte(content), 0o644); err != nil {
		m.t.Fatal(err)
	}
}
