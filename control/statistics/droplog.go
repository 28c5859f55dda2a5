// SPDX-License-Identifier: Apache-2.0

package statistics

import (
	"context"
	"log/slog"
	"time"

	"weft/control/counters"
	"weft/packet"
)

const (
	// dropLogInterval is the interval at which LogDrops reads the counters of logged drops.
	dropLogInterval = 5 * time.Second
	// dropLogPause is the shortest time between two log lines about one port. The later line has
	// the number of frames dropped since the earlier line.
	dropLogPause = time.Minute
)

// loggedDrop is the drop reason that is not only counted but also logged. Its cause is a sender
// that does not follow the Geneve protocol, and the sender's operator does not see this
// switch's counters.
const (
	loggedDrop = packet.DropBadGeneve
	loggedText = "Invalid Geneve tunnel metadata, frames dropped" // begins with the words of Open vSwitch
)

// dropLog writes log lines about frames dropped for loggedDrop.
type dropLog struct {
	statistics *Statistics
	log        *slog.Logger
	ports      map[uint32]*loggedPort // by number in the data path
}

// loggedPort is the state of the log for one port.
type loggedPort struct {
	count uint64    // number of the port's dropped frames at its last line
	until time.Time // time from which the port may have its next line
}

// LogDrops logs frames that were dropped because of invalid Geneve options, until ctx ends.
func (s *Statistics) LogDrops(ctx context.Context, log *slog.Logger) {
	l := dropLog{statistics: s, log: log, ports: map[uint32]*loggedPort{}}
	tick := time.NewTicker(dropLogInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			l.look(now)
		}
	}
}

// look writes a line for each port with new drops, but at most one line in dropLogPause.
func (l *dropLog) look(now time.Time) {
	counts, names := l.statistics.dropped()
	for number := range l.ports {
		if _, there := counts[number]; !there {
			delete(l.ports, number) // the port was deleted, or a new port has its number
		}
	}
	for number, count := range counts {
		p := l.ports[number]
		if p == nil {
			p = &loggedPort{}
			l.ports[number] = p
		}
		if count < p.count {
			p.count = 0 // a new port has the number
		}
		if count == p.count || now.Before(p.until) {
			continue
		}
		l.log.Info(loggedText, "port", names[number], "frames", count-p.count)
		p.count, p.until = count, now.Add(dropLogPause)
	}
}

// dropped returns the ports that have dropped frames for loggedDrop: the number of these frames
// and the port's name. The key of both maps is the port's number in the data path.
func (s *Statistics) dropped() (counts map[uint32]uint64, names map[uint32]string) {
	infos := s.pipeline.View().Ports()
	counts, names = map[uint32]uint64{}, map[uint32]string{}
	w, release := s.hold()
	defer release()
	for i := range infos {
		no := infos[i].At()
		sum := livePort(w, no)
		counters.AddPort(&sum, &s.pipeline.Region().Ports[no], 1)
		if n := sum.RxDrops[loggedDrop]; n != 0 {
			counts[no], names[no] = n, infos[i].Name
		}
	}
	return counts, names
}
