// SPDX-License-Identifier: Apache-2.0

package nic

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"weft/e2e/lab"
)

// A vsock client with CID 1 has only the role that --vsock-allow gives.
func TestVsockRoles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("end-to-end tests need root")
	}
	l := lab.New(t)
	t.Cleanup(l.Close)
	h := &host{t: t}
	for try := 1; ; try++ {
		h.Machine = l.Host(fmt.Sprint("outside", try)).Machine(lab.MachineConfig{
			Name: fmt.Sprint("vsock", try), Card: "virtio-net-pci", MAC: "02:00:00:00:01:01", Cable: l.Dir + "/vsock-cable", Serve: true,
		})
		err := h.Booted(bootLimit)
		if err == nil {
			break
		}
		if h.Kill(); try == boots {
			t.Fatal(err)
		}
	}
	over := func(args ...string) (string, error) {
		return h.Try(append([]string{"weft", "--socket", "vsock:1:5210"}, args...)...)
	}
	for _, role := range []struct {
		allow         string
		reads, writes bool
	}{{"", false, false}, {"1=read", true, false}, {"1=none", false, false}, {"7=write", false, false}, {"1=write", true, true}} {
		options := []string{"--vsock", "5210"}
		if role.allow != "" {
			options = append(options, "--vsock-allow", role.allow)
		}
		h.start(options...)
		for _, c := range []struct {
			args    []string
			allowed bool
		}{{[]string{"show"}, role.reads}, {[]string{"add-flow", "priority=7,actions=drop"}, role.writes}} {
			out, err := over(c.args...)
			if (err == nil) != c.allowed {
				t.Errorf("%s with %q: %v %s; want success: %v\n%s", c.args[0], role.allow, err, out, c.allowed, h.log())
			}
			if err != nil && !strings.Contains(err.Error(), "cid 1 has the role") {
				t.Errorf("%s with %q: the refusal does not name the peer: %v", c.args[0], role.allow, err)
			}
		}
		if flows := h.weft("dump-flows"); strings.Contains(flows, "priority=7") != role.writes {
			t.Errorf("with %q: flows\n%s", role.allow, flows)
		}
		h.Run("kill", "-INT", fmt.Sprint(h.weftd))
		eventually(t, func() error {
			if out := h.processes(""); out != "" {
				return fmt.Errorf("processes %s", out)
			}
			return nil
		})
	}
}
