// SPDX-License-Identifier: Apache-2.0

package central

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"weft/e2e/lab"
)

// tap is a tap port of a real switch. Its guest runs in the process with the guests.
type tap struct {
	name, dev string
	host      *realHost
	port      *placed // nil: a spare tap, whose port the centrals do not know
}

func (t *tap) ref() TapRef { return TapRef{t.name, t.host.guests.NS} }

func (t *tap) call(method string, args, reply any) error {
	return t.host.calls.Call("GuestService."+method, args, reply)
}

func (t *tap) open() error {
	t.host.guests.Run("ip", "link", "set", t.dev, "up")
	return t.call("Open", OpenArgs{t.ref(), t.dev}, &struct{}{})
}

// declare assigns a port of the model to the tap: the port gets the tap's name, and the tap's guest
// gets the port's addresses. declare does not send the port to the weft-central servers.
func (t *tap) declare(p *placed) error {
	p.Name = t.name
	t.port = p
	return t.call("Declare", DeclareArgs{t.ref(), p.peer()}, &struct{}{})
}

func (p *placed) peer() Peer { return Peer{[6]byte(p.Mac), addressOf(p)} }

// firstAnswer sends pings until one is answered, and returns the time of the answer.
func (t *tap) firstAnswer(ctx context.Context, to *placed, interval time.Duration) (answered time.Duration, ok bool) {
	until, limited := ctx.Deadline()
	if !limited {
		return 0, false
	}
	err := t.call("FirstAnswer", PingArgs{t.ref(), to.peer(), interval, clock() + time.Until(until)}, &answered)
	return answered, err == nil && answered != 0
}

// startPings starts a series of pings and returns its identifier.
func (t *tap) startPings(to *placed, interval time.Duration) (id uint16) {
	lab.Check(t.call("Start", PingArgs{From: t.ref(), To: to.peer(), Interval: interval}, &id))
	return id
}

// steadyInterval is the interval of the pings between permanent guests.
const steadyInterval = 20 * time.Millisecond

// series is a series of pings between two permanent guests.
type series struct {
	id       uint16
	from, to string
}

// steady starts one series of pings for each real host, from a permanent guest of the host to one of
// the next host.
func (s *site) steady() (list []series) {
	if s == nil {
		return
	}
	for i, h := range s.hosts {
		k := i % len(s.nets)
		to := s.hosts[(i+1)%len(s.hosts)].steady[k]
		id := h.steady[k].startPings(to.port, steadyInterval)
		list = append(list, series{id, h.steady[k].name, to.name})
	}
	return list
}

// endSteady stops series of pings and adds their counts to the run's rows.
func (r *run) endSteady(list []series) {
	if len(list) == 0 {
		return
	}
	args := EndArgs{Wait: lastAnswers}
	for _, s := range list {
		args.IDs = append(args.IDs, s.id)
	}
	var tallies []Tally
	lab.Check(r.fleet.site.calls.Call("GuestService.End", args, &tallies))
	var sum Tally
	for i, t := range tallies {
		if t.Lost > 0 {
			r.Log("  %d of %d pings of %s to %s lost, %d before they arrived: %s", t.Lost, t.Sent, list[i].from, list[i].to, t.Unarrived, t.Gaps)
		}
		sum.Sent, sum.Lost, sum.Late, sum.Longest = sum.Sent+t.Sent, sum.Lost+t.Lost, sum.Late+t.Late, max(sum.Longest, t.Longest)
	}
	r.add("pings between real guests", float64(sum.Sent), "pings")
	r.add("lost pings", float64(sum.Lost), "pings")
	r.add("pings answered after more than 1 s", float64(sum.Late), "pings")
	r.seconds("longest round-trip time", sum.Longest)
}

// drops returns how many frames the real switches and the kernel have dropped, by reason. The reason
// "tx" counts frames that a port did not accept.
func (s *site) drops() map[string]uint64 {
	sum := map[string]uint64{}
	if s == nil {
		return sum
	}
	for _, h := range s.hosts {
		for _, ns := range []*lab.Host{h.daemon.Host, h.guests} {
			_ = ns.Do(func() error { return addKernelDrops(sum) }) // error ignored: the rows are then missing
		}
		ports, err := h.api.Ports("")
		if err != nil {
			continue // the host's control process is not running
		}
		for _, p := range ports {
			sum["tx"] += p.Stats.TxDrops
			for reason, n := range p.Stats.RxDrops {
				sum[reason] += n
			}
		}
	}
	var full uint64
	if s.calls.Call("GuestService.Drops", struct{}{}, &full) == nil {
		sum["socket of a guest (kernel)"] = full
	}
	_ = addKernelDrops(sum) // error ignored: the rows are then missing
	return sum
}

// addKernelDrops adds to sum the frames that the kernel has dropped at the devices in this thread's
// network namespace, by kind of device.
func addKernelDrops(sum map[string]uint64) error {
	p, err := procfs.NewProc(unix.Gettid())
	if err != nil {
		return err
	}
	devices, err := p.NetDev()
	for name, d := range devices {
		kind := strings.TrimRight(name, "0123456789")
		sum[fmt.Sprintf("received by a device %s (kernel)", kind)] += d.RxDropped
		sum[fmt.Sprintf("sent by a device %s (kernel)", kind)] += d.TxDropped
	}
	return err
}
