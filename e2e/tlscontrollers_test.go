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

// Two bridges of one weftd, each with a TLS controller of its own: a learning application of
// os-ken connects the namespaces of each bridge, and its flows are in its bridge only.
func TestTLSControllersOfBridges(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("osken-manager"); err != nil {
		t.Skip("osken-manager is missing: install python3-os-ken")
	}
	l := newLab(t)
	certs := l.Certificates()
	host := l.Host("host")
	for i := range 2 {
		host.Start("osken-manager", "--ofp-listen-host", "127.0.0.1", "--ofp-ssl-listen-port", fmt.Sprint(6653+i),
			"--ctl-privkey", filepath.Join(certs, "key.pem"), "--ctl-cert", filepath.Join(certs, "cert.pem"), "--ca-certs", filepath.Join(certs, "ca.pem"),
			"testdata/osken/learning.py")
	}
	d := host.Weftd("--controller", "ssl:127.0.0.1:6653", "--openflow-certs", certs)
	d.Weft("add-br", "br1", "--controller", "ssl:127.0.0.1:6654")
	bridges := []string{"", "br1"}
	var senders []*lab.Host
	for i := range bridges {
		for end := range 2 {
			h := l.Host(fmt.Sprintf("h%d%d", i, end))
			var words []string
			if bridges[i] != "" {
				words = []string{"bridge=" + bridges[i]}
			}
			d.Tap(h, fmt.Sprintf("02:00:00:00:0%d:0%d", i, end), fmt.Sprintf("10.0.%d.%d/24", i, 1+end), guestMTU, words...)
			if end == 0 {
				senders = append(senders, h)
			}
		}
	}
	for i, bridge := range bridges {
		if err := lab.WaitPing(senders[i], fmt.Sprintf("10.0.%d.2", i), time.Minute); err != nil {
			t.Fatalf("bridge %q: %v\n%s", bridge, err, d.Weft("dump-flows"))
		}
		eventually(t, func() error {
			words := []string{"dump-flows"}
			if bridge != "" {
				words = append(words, bridge)
			}
			flows := d.Weft(words...)
			if own, other := fmt.Sprintf("dl_dst=02:00:00:00:0%d:01", i), fmt.Sprintf("dl_dst=02:00:00:00:0%d:01", 1-i); !strings.Contains(flows, own) || strings.Contains(flows, other) {
				return fmt.Errorf("bridge %q: want a flow with %s and none with %s:\n%s", bridge, own, other, flows)
			}
			return nil
		})
	}
}
