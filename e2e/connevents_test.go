// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"syscall"
	"testing"
)

// A monitor reports the start, the first answer and the end of a connection. It still
// does after the engine was replaced. It does not report connections of other zones.
func TestMonitorConnections(t *testing.T) {
	t.Parallel()
	s := newTracked(t, snatFlows)
	serve(t, s.outside, "192.0.2.2", 80)
	s.calls(s.inside, "192.0.2.2", 80, "192.0.2.1")
	s.weft.Weft("flush-conntrack")
	all := background(t, s.weft, "monitoring", "monitor", "--connections", "--zone", "5")
	other := background(t, s.weft, "monitoring", "monitor", "--connections", "--zone", "6")
	ends := background(t, s.weft, "monitoring", "monitor", "--connections", "--events", "destroy")
	s.calls(s.inside, "192.0.2.2", 80, "192.0.2.1")
	s.weft.Weft("flush-conntrack")
	const tuple = `tcp,orig=\(src=10\.0\.0\.1,dst=192\.0\.2\.2,sport=\d+,dport=80\),reply=\(src=192\.0\.2\.2,dst=192\.0\.2\.1,sport=80,dport=20\d\d\d\),zone=5,mark=7,labels=0x9,protoinfo=`
	whole := regexp.MustCompile(`(?s)connection new: ` + tuple + `\(state=SYN_SENT\).*connection update \(state\): ` + tuple + `\(state=ESTABLISHED\).*connection update \(state\): ` + tuple + `\(state=TIME_WAIT\).*connection destroy \(flush\): ` + tuple)
	end := regexp.MustCompile(`^[^\n]*\n?[0-9:.]* connection destroy \(flush\): ` + tuple)
	eventually(t, func() error {
		if !whole.MatchString(all.Output()) || !end.MatchString(ends.Output()) {
			return fmt.Errorf("all:\n%s\nends:\n%s", all.Output(), ends.Output())
		}
		return nil
	})
	if regexp.MustCompile("connection").MatchString(other.Output()) {
		t.Errorf("of zone 6:\n%s", other.Output())
	}
	told := len(all.Output())
	s.weft.KillEngine()
	s.calls(s.inside, "192.0.2.2", 80, "192.0.2.1")
	again := regexp.MustCompile(`(?s)connection new: ` + tuple + `.*connection update \(state\): ` + tuple)
	eventually(t, func() error {
		if !again.MatchString(all.Output()[told:]) {
			return fmt.Errorf("behind the engine's death:\n%s", all.Output()[told:])
		}
		return nil
	})
	all.Signal(syscall.SIGINT)
	other.Signal(syscall.SIGINT)
	ends.Signal(syscall.SIGINT)
	finished(t, all)
	finished(t, other)
	finished(t, ends)
}
