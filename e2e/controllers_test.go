// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft/e2e/lab"
)

// controllerApps are learning applications of widely used controllers. Each application
// listens on 127.0.0.1:6653 and adds flows for the addresses that it has learned.
var controllerApps = []struct {
	name, binary, from string
	args               []string
	flow               string // word that appears in a flow of the application
}{
	{"ovs-testcontroller", "ovs-testcontroller", "openvswitch-testcontroller", []string{"-O", "OpenFlow10", "ptcp:6653:127.0.0.1"}, "idle_timeout=60"},
	{"os-ken", "osken-manager", "python3-os-ken",
		[]string{"--ofp-listen-host", "127.0.0.1", "--ofp-tcp-listen-port", "6653", "testdata/osken/learning.py"}, "priority=1,"},
}

// A controller's learning application connects two namespaces through packet_ins,
// packet_outs and flow_mods. Its flows remain when the controller ends.
func TestControllerApplications(t *testing.T) {
	t.Parallel()
	for _, app := range controllerApps {
		t.Run(app.name, func(t *testing.T) {
			if _, err := exec.LookPath(app.binary); err != nil {
				t.Skipf("%s is missing: install %s", app.binary, app.from)
			}
			l := newLab(t)
			host := l.Host("host")
			args := append([]string{app.binary}, app.args...)
			if app.binary == "ovs-testcontroller" {
				args = append(args, "--unixctl="+filepath.Join(t.TempDir(), "ctl"))
			}
			controller := host.Start(args...)
			d := host.Weftd("--controller", "tcp:127.0.0.1:6653")
			a := l.Host("a")
			d.Tap(a, "02:00:00:00:00:01", "10.0.0.1/24", guestMTU)
			d.Tap(l.Host("b"), "02:00:00:00:00:02", "10.0.0.2/24", guestMTU)
			if err := lab.WaitPing(a, "10.0.0.2", time.Minute); err != nil {
				t.Fatalf("%v\n%s\n%s", err, controller.Output(), d.Weft("dump-flows"))
			}
			eventually(t, func() error {
				flows := d.Weft("dump-flows")
				for _, word := range []string{app.flow, "dl_dst=02:00:00:00:00:01", "dl_dst=02:00:00:00:00:02"} {
					if !strings.Contains(flows, word) {
						return fmt.Errorf("no flow with %s:\n%s", word, flows)
					}
				}
				return nil
			})
			if p, err := lab.PingAll(a, "10.0.0.2", 5, "-i", "0.1"); err != nil || p.Received != 5 {
				t.Errorf("with flows of the controller: %+v, %v", p, err)
			}
			controller.Kill()
			if p, err := lab.PingAll(a, "10.0.0.2", 5, "-i", "0.1"); err != nil || p.Received != 5 {
				t.Errorf("after the controller's end: %+v, %v", p, err)
			}
		})
	}
}
