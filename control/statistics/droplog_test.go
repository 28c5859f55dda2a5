// SPDX-License-Identifier: Apache-2.0

package statistics

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"weft/control/pipeline/pipelinetest"
)

// The log has one line a minute for each port with new frames of the reason. The line has the
// number of frames since the port's last line.
func TestDropsAreLogged(t *testing.T) {
	f := pipelinetest.New(t)
	f.VXLANPorts(2)
	s := New(f.P, []int{0})
	infos := s.pipeline.View().Ports()
	if len(infos) < 2 {
		t.Fatalf("%d ports", len(infos))
	}
	first, second := infos[0], infos[1]
	count := func(number uint32) *uint64 { return &f.P.Workers().Shared()[0].Ports[number].RxDrops[loggedDrop] }
	var text bytes.Buffer
	l := dropLog{statistics: s, ports: map[uint32]*loggedPort{}, log: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))}
	now := time.Unix(1, 0)
	look := func(pause time.Duration, want string) {
		t.Helper()
		text.Reset()
		now = now.Add(pause)
		l.look(now)
		if text.String() != want {
			t.Errorf("%q, want %q", text.String(), want)
		}
	}
	line := func(name string, n int) string {
		return fmt.Sprintf("level=INFO msg=\"Invalid Geneve tunnel metadata, frames dropped\" port=%s frames=%d\n", name, n)
	}
	look(0, "")
	*count(first.At()) = 3
	look(dropLogInterval, line(first.Name, 3))
	look(dropLogInterval, "")
	*count(first.At()) = 5
	look(dropLogInterval, "")
	*count(second.At()) = 1
	look(dropLogInterval, line(second.Name, 1))
	look(dropLogPause, line(first.Name, 2))
	look(dropLogPause, "")
	s.ResetPort(first.At())
	look(dropLogPause, "")
	*count(first.At())++
	look(dropLogPause, line(first.Name, 1))
}
