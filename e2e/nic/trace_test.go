// SPDX-License-Identifier: Apache-2.0

package nic

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
)

// TestTraces traces two datagrams through the kernel on one card. One goes from a
// socket through Linux's VXLAN, with iptables, connection tracking and NAT. The other
// goes from a guest through the switch, with the same rules. The environment variable
// WEFT_TRACES names a directory for the traces. The test is about the recording of
// docs/traces and not about the switch, so make nic leaves it to make test-long.
func TestTraces(t *testing.T) {
	left, right := pair(t, "igb", "")
	left.start()
	right.start()
	left.configure(right)
	right.configure(left)
	for _, rule := range []string{
		"-A OUTPUT -m conntrack --ctstate NEW,ESTABLISHED,RELATED -j ACCEPT",
		"-A INPUT -m conntrack --ctstate NEW,ESTABLISHED,RELATED -j ACCEPT",
		"-t nat -A POSTROUTING -o vx9 -j MASQUERADE",
	} {
		left.Run(append([]string{"iptables-legacy"}, strings.Fields(rule)...)...)
	}
	for i, h := range []*host{left, right} {
		peer := []*host{right, left}[i]
		h.Run("ip", "link", "add", "vx9", "type", "vxlan", "id", "9", "local", h.ip, "remote", peer.ip, "dstport", "4790", "dev", "eth0")
		h.Run("ip", "address", "add", fmt.Sprintf("10.9.0.%d/24", i+1), "dev", "vx9")
		h.Run("ip", "link", "set", "vx9", "up")
	}
	reach(t, left, "10.9.0.2")
	reach(t, left.guest, right.guestIP)

	linux := functions(left.trace(left.send("10.9.0.2"), "udp_sendmsg"))
	weft := functions(left.trace(left.guest.Command(left.send(right.guestIP)...),
		"udp_sendmsg", "tun_chr_read_iter", "xsk_sendmsg", "__xsk_sendmsg", "igb_poll"))
	t.Logf("Linux: %s", byHop(linux))
	t.Logf("Weft:  %s", byHop(weft))
	for _, want := range []string{"nf_hook_slow", "nf_conntrack_in", "vxlan_xmit", "igb_xmit_frame"} {
		if count(linux, want) == 0 {
			t.Errorf("Linux's way has no %s: what is compared?", want)
		}
	}
	if n := count(linux, "ip_output"); n < 2 {
		t.Errorf("Linux's way has %d IP outputs, want two", n)
	}
	for _, want := range []string{"udp_sendmsg", "tun_net_xmit", "igb_xmit_zc"} {
		if count(weft, want) == 0 {
			t.Errorf("Weft's way has no %s: was it traced?", want)
		}
	}
	for _, f := range weft {
		if unwanted.MatchString(f) {
			t.Errorf("Weft's way has %s", f)
		}
	}
	if n := count(weft, "ip_output"); n != 1 {
		t.Errorf("Weft's way has %d IP outputs, want the guest's own", n)
	}
}

// unwanted matches kernel functions that frames of the switch must not go through:
// netfilter, connection tracking, NAT, segmentation and the kernel's tunnel.
var unwanted = regexp.MustCompile(`^(nf_|ipt_|nft_|xt_|skb_segment|__skb_gso_segment|skb_udp_tunnel_segment|skb_mac_gso_segment|vxlan_)`)

func (h *host) send(to string) []string {
	return []string{"busybox", "traceroute", "-n", "-q", "1", "-f", "2", "-m", "2", "-w", "1", to, "1400"}
}

// trace runs a command, and returns a function_graph recording of the calls below the kernel functions in
// names.
func (h *host) trace(command []string, names ...string) string {
	h.t.Helper()
	const dir = "/sys/kernel/tracing"
	if _, err := h.Try("cat", dir+"/current_tracer"); err != nil {
		h.Run("busybox", "mount", "-t", "tracefs", "tracefs", dir)
	}
	// The kernel refuses functions that it does not have. The buffer of each CPU has room for about half a
	// million calls. Full paths avoid the built-in commands of busybox's shell.
	out := h.Run("sh", "-c", "set -e; cd "+dir+`
echo 0 >tracing_on
echo 32768 >buffer_size_kb
echo >set_graph_function
for f in `+strings.Join(names, " ")+`; do
	if grep -q "^$f\( \|$\)" available_filter_functions; then echo $f >>set_graph_function; fi
done
echo function_graph >current_tracer
echo >trace
echo 1 >tracing_on
/bin/`+strings.Join(command, " ")+` >/dev/null 2>&1 || true
echo 0 >tracing_on
cat trace
echo nop >current_tracer
`)
	if strings.Contains(out, " EVENTS]") { // CPU:1 [LOST 3 EVENTS]
		h.t.Fatal("the kernel's buffer was too small for the recording")
	}
	if to := os.Getenv("WEFT_TRACES"); to != "" {
		name := "linux"
		if len(names) > 1 {
			name = "weft"
		}
		if err := os.WriteFile(filepath.Join(to, "udp_sendmsg-"+name+"-igb.funcgraph.txt"), []byte(out), 0o644); err != nil {
			h.t.Error(err)
		}
	}
	return out
}

// called matches a line of a recording at which a call begins.
var called = regexp.MustCompile(`\|\s+([A-Za-z_][A-Za-z0-9_.]*)(?: \[\w+\])?\(`)

func functions(trace string) (list []string) {
	for _, m := range called.FindAllStringSubmatch(trace, -1) {
		name, _, _ := strings.Cut(m[1], ".") // removes a compiler's suffix
		list = append(list, name)
	}
	return list
}

func count(list []string, name string) (n int) {
	for _, f := range list {
		if f == name {
			n++
		}
	}
	return n
}

// hops maps patterns of kernel function names to stages of processing. The first
// pattern that matches applies.
var hops = []struct {
	name    string
	pattern *regexp.Regexp
}{
	{"netfilter", regexp.MustCompile(`^(nf_|ipt_|nft_|xt_)`)},
	{"tunnel", regexp.MustCompile(`vxlan|udp_tunnel|iptunnel`)},
	{"AF_XDP", regexp.MustCompile(`xsk_|^xp_|_zc$`)},
	{"driver", regexp.MustCompile(`^igb_|^e1000`)},
	{"tap", regexp.MustCompile(`^tun_`)},
	{"UDP, IP", regexp.MustCompile(`^_*(udp|ip|ipv4|fib|rt|neigh|sock|sk)_`)},
	{"device layer", regexp.MustCompile(`dev_|qdisc|sch_|xmit|netif|gso|features`)},
	{"buffers, memory", regexp.MustCompile(`skb|alloc|free|slab|page|memcg|kmem|copy`)},
}

func byHop(list []string) string {
	counts := map[string]int{}
	for _, f := range list {
		name := "other"
		for _, h := range hops {
			if h.pattern.MatchString(f) {
				name = h.name
				break
			}
		}
		counts[name]++
	}
	var names []string
	for name := range counts {
		names = append(names, name)
	}
	sort.Slice(names, func(i, j int) bool { return counts[names[i]] > counts[names[j]] })
	text := fmt.Sprint(len(list), " functions")
	for _, name := range names {
		text += fmt.Sprintf(", %s %d", name, counts[name])
	}
	return text
}
