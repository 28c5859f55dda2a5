// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
)

// The shell's completion suggests the names of the daemon's ports, and the types of ports.
func TestCompletePorts(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"name":"vm1","type":"tap","state":"up"},{"name":"uplink","type":"af_xdp","state":"down"}]`)
	}))
	for line, want := range map[string]string{
		"del-port ":      "vm1\ttap up\nuplink\taf_xdp down\n:4\n",
		"del-port v":     "vm1\ttap up\n:4\n",
		"del-port vm1 ":  ":4\n",
		"show limits up": "uplink\taf_xdp down\n:4\n",
		"show routes up": "uplink\taf_xdp down\n:4\n",
	} {
		// __complete is cobra's verb for shells. Its last argument is the incomplete word at the cursor.
		out, _, code := weft("", append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if code != 0 || out != want {
			t.Errorf("%q: %d %q, want %q", line, code, out, want)
		}
	}
	for _, shell := range []string{"bash", "zsh"} {
		if out, errs, code := weft("", "completion", shell); code != 0 || !strings.Contains(out, "__complete") {
			t.Errorf("completion %s: %d %s", shell, code, errs)
		}
	}
	t.Setenv("WEFT_SOCKET", "/nosuchdirectory/s")
	if out, _, code := weft("", "__complete", "del-port", ""); code != 0 || out != ":4\n" {
		t.Errorf("without a daemon: %d %q", code, out)
	}
}

// The completion of add-port suggests the options that the help names for the port's type.
func TestCompleteOptions(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `[{"name":"vm1","type":"tap","state":"up"}]`)
	}))
	for line, want := range map[string]string{
		"add-port x ty":                      "type=af_packet type=af_xdp type=bond type=device type=erspan type=geneve type=gre type=ipfix type=local type=mirror type=patch type=sflow type=tap type=uplink type=vhost-user type=vxlan type=vxlan-gpe",
		"add-port x type=vxlan vn":           "vni=",
		"add-port x type=vxlan vni=1 vn":     "",
		"add-port x type=vxlan reserved=g":   "reserved=gbp reserved=gpe",
		"add-port x type=vxlan-gpe gb":       "",
		"add-port x type=vxlan-gpe bfd_m":    "bfd_min_rx= bfd_min_tx= bfd_mult=",
		"add-port x type=vhost-user mode=":   "mode=client mode=server",
		"add-port x type=vhost-user socket-": "socket-group= socket-mode= socket-owner=",
		"add-port x type=tap netn":           "netns=",
		"add-port x type=tap vlan_mode=nat":  "vlan_mode=native-tagged vlan_mode=native-untagged",
		"add-port x type=uplink ta":          "",
		"add-port x type=uplink dev=lo":      "dev=lo",
		"add-port x type=patch peer=":        "peer=vm1",
		"add-port x type=bond bond_mode=":    "bond_mode=active-backup bond_mode=balance-slb bond_mode=balance-tcp",
		"add-port x type=mirror output_":     "output_port= output_vlan=",
		"add-port x type=mirror ta":          "",
		"add-port x type=nosuch que":         "",
	} {
		out, _, code := weft("", append([]string{"__complete"}, strings.Split(line, " ")...)...)
		suggested, _, _ := strings.Cut(out, ":")
		if got := strings.Join(strings.Fields(suggested), " "); code != 0 || got != want {
			t.Errorf("%q: %d %q, want %q", line, code, got, want)
		}
	}
}

// The completion of a flow or a match suggests its next word, and the daemon's ports where a port may be.
func TestCompleteFlows(t *testing.T) {
	t.Setenv("WEFT_SOCKET", serve(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "bridges") {
			_, _ = io.WriteString(w, `[{"name":"br0"},{"name":"br1"}]`)
			return
		}
		_, _ = io.WriteString(w, `[{"name":"vm1","type":"tap","state":"up"}]`)
	}))
	for line, want := range map[string]string{
		"add-flow table=1,tcp_ds":      "table=1,tcp_dst=\n:6\n",
		"add-flow br0 ip,actions=vm":   "ip,actions=vm1\n:6\n",
		"dump-flows in_port=v":         "in_port=vm1\n:6\n",
		"del-br br":                    "br0\nbr1\n:4\n",
		"dump-flows --bridge br":       "br0\nbr1\n:4\n",
		"add-flow ip actions=drop nor": ":4\n",
	} {
		out, errs, code := weft("", append([]string{"__complete"}, strings.Split(line, " ")...)...)
		if code != 0 || out != want {
			t.Errorf("%q: %d %q, want %q; %s", line, code, out, want, errs)
		}
	}
}

// Bash accepts the completion script. It completes a flow without putting backslashes before the commas.
func TestBashCompletion(t *testing.T) {
	script, errs, code := weft("", "completion", "bash")
	if code != 0 || strings.Count(script, bashCommas+bashAnchor) != 1 {
		t.Fatalf("%d %s: the script lacks the line that undoes the backslashes", code, errs)
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("bash is not installed")
	}
	cmd := exec.Command("bash", "-c", `COMPREPLY=('ip\,actions=normal' 'a\ b'); `+bashCommas+`printf '%s\n' "${COMPREPLY[@]}"`)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "ip,actions=normal\na\\ b\n" {
		t.Errorf("%v: %q", err, out)
	}
	cmd = exec.Command("bash", "-n")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
