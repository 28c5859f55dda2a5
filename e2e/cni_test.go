// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netns"

	"weft/api"
	"weft/e2e/lab"
)

// cniNode is a host with weftd, weft-cni, and the CNI project's cnitool and host-local.
type cniNode struct {
	t       *testing.T
	host    *lab.Host
	weft    *lab.Daemon
	plugins string // directory of programs
	dir     string // directory of configurations, of libcni's results and of host-local's addresses
}

func newCNINode(t *testing.T) (*lab.Lab, *cniNode) {
	t.Helper()
	l := newLab(t)
	n := &cniNode{t: t, host: l.Host("h"), plugins: l.CNI(), dir: filepath.Join(l.Dir, "cni")}
	for _, dir := range []string{"conf", "results", "none/results", "addresses"} {
		if err := os.MkdirAll(filepath.Join(n.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.weft = n.host.Weftd("--name", "sw0")
	n.weft.Weft("add-flow", "actions=normal")
	return l, n
}

// network writes the configuration of a network. Its pods have addresses of 10.9.0.0/16 from first
// on, and of fd09::/64 from the same last number on. keys are further keys of weft-cni.
func (n *cniNode) network(name, first, keys string) *libcni.NetworkConfigList {
	n.t.Helper()
	text := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [{"type": "weft-cni", "socket": %q, %s
		"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.9.0.0/16", "rangeStart": %q}], [{"subnet": "fd09::/64", "rangeStart": "fd09::%s"}]],
		"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}]}`,
		name, n.weft.Socket, keys, n.dir+"/addresses", first, first[strings.LastIndex(first, ".")+1:])
	if err := os.WriteFile(filepath.Join(n.dir, "conf", name+".conflist"), []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	list, err := libcni.NetworkConfFromBytes([]byte(text))
	if err != nil {
		n.t.Fatal(err)
	}
	return list
}

// tool runs cnitool. Its results are kept in the node's directory: ip netns exec gives it a mount
// namespace of its own.
func (n *cniNode) tool(verb, network string, pod *lab.Host) error {
	script := fmt.Sprintf("mkdir -p /var/lib/cni && mount --bind %s/results /var/lib/cni && CNI_PATH=%s NETCONFPATH=%s/conf exec %s/cnitool %s %s /run/netns/%s",
		n.dir, n.plugins, n.dir, n.plugins, verb, network, pod.NS)
	_, err := n.host.Try("sh", "-c", script)
	return err
}

// succeeds runs cnitool and fails the test if cnitool fails.
func (n *cniNode) succeeds(verb, network string, pod *lab.Host) {
	n.t.Helper()
	if err := n.tool(verb, network, pod); err != nil {
		n.t.Fatal(err)
	}
}

// fails runs cnitool and fails the test unless cnitool fails with an error that has the text.
func (n *cniNode) fails(verb, network string, pod *lab.Host, text string) {
	n.t.Helper()
	if err := n.tool(verb, network, pod); err == nil || !strings.Contains(err.Error(), text) {
		n.t.Fatalf("cnitool %s %s: %v, want %q", verb, network, err, text)
	}
}

// nothing checks that no pod has left anything in the switch, in the host or in the IPAM
// plugin. moment names the time for the error.
func (n *cniNode) nothing(moment string) {
	n.t.Helper()
	for _, p := range n.ports() {
		n.t.Errorf("%s: port %s is left: %v", moment, p.Name, p.Options)
	}
	for line := range strings.Lines(n.host.Run("ip", "-o", "link", "show", "type", "veth")) {
		n.t.Errorf("%s: a device is left: %s", moment, line)
	}
	files, _ := filepath.Glob(n.dir + "/addresses/*/[1f][0d]*") // host-local has a file for each address
	for _, file := range files {
		n.t.Errorf("%s: an address is left: %s", moment, file)
	}
}

func (n *cniNode) ports() []api.Port { return show(n.weft).Ports }

// portOfNetwork returns the port of the only pod of the network.
func (n *cniNode) portOfNetwork(network string) api.Port {
	n.t.Helper()
	var found []api.Port
	for _, p := range n.ports() {
		if strings.HasPrefix(p.Options["id"], network+"/") {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		n.t.Fatalf("network %s has the ports %v, want one", network, found)
	}
	return found[0]
}

// Pods reach each other. CHECK finds a removed port. DEL may be repeated, also without the
// pod's namespace. An ADD that fails leaves nothing.
func TestPods(t *testing.T) {
	t.Parallel()
	l, n := newCNINode(t)
	a, b := l.Host("a"), l.Host("b")
	n.network("left", "10.9.0.2", `"bridge": "sw0", "mtu": 1400, "bind": true,`)
	n.network("right", "10.9.0.130", `"options": {"ingress_policing_rate": "100000"},`)
	n.network("wrong", "10.9.0.2", `"bridge": "none",`)

	n.succeeds("status", "left", a)
	n.fails("status", "wrong", a, "weft add-br none")
	n.fails("add", "wrong", a, "no such bridge; expected one of")
	n.nothing("after an ADD that fails")

	n.succeeds("add", "left", a)
	n.succeeds("add", "right", b)
	if out := a.Run("ip", "link", "show", "eth0"); !strings.Contains(out, "mtu 1400") {
		t.Errorf("MTU of the pod: %s", out)
	}
	if out := a.Run("ip", "route"); !strings.Contains(out, "default via 10.9.0.1 dev eth0") {
		t.Errorf("routes of the pod: %s", out)
	}
	if p := n.portOfNetwork("left"); p.Options["addresses"] != macOf(t, a, "eth0")+" 10.9.0.2 fd09::2" {
		t.Errorf("the bound port: %v", p.Options)
	}
	reach(t, a, "10.9.0.130")
	reach(t, a, "fd09::130", "-6")
	n.fails("add", "left", a, "exists already")
	reach(t, a, "10.9.0.130")
	n.succeeds("check", "left", a)
	n.succeeds("check", "right", b)

	a.Run("ip", "address", "add", "10.9.0.77/16", "dev", "eth0")
	if _, err := a.Try("ping", "-c", "1", "-W", "1", "-I", "10.9.0.77", "10.9.0.130"); err == nil {
		t.Error("a bound pod sends from another address")
	}
	a.Run("ip", "address", "del", "10.9.0.77/16", "dev", "eth0")
	a.Run("ip", "route", "del", "default")
	n.fails("check", "left", a, "lacks the route to 0.0.0.0/0")
	n.weft.Weft("del-port", n.portOfNetwork("right").Name)
	n.fails("check", "right", b, "weftd has no such port")

	n.succeeds("del", "left", a)
	n.succeeds("del", "left", a)
	if out, err := a.Try("ip", "link", "show", "eth0"); err == nil {
		t.Errorf("the interface after DEL: %s", out)
	}
	if out, err := exec.Command("ip", "netns", "delete", b.NS).CombinedOutput(); err != nil {
		t.Fatalf("ip netns delete: %v: %s", err, out)
	}
	n.succeeds("del", "right", b)
	n.nothing("after DEL")
}

// While weftd is away, ADD and DEL fail with code 11 and leave only ports, which DEL removes
// later. GC removes what belongs to no valid attachment of its network, and nothing else.
func TestPodsWithoutWeftd(t *testing.T) {
	t.Parallel()
	l, n := newCNINode(t)
	a := l.Host("a")
	list, other := n.network("pods", "10.9.0.2", ""), n.network("other", "10.9.1.2", "")
	n.weft.Weft("add-port", "own", "type=tap")
	first, second, third := n.pod("c1", a), n.pod("c2", a), n.pod("c3", a)
	first.IfName, second.IfName, third.IfName = "eth0", "eth1", "eth2"
	for _, add := range []struct {
		list *libcni.NetworkConfigList
		pod  *libcni.RuntimeConf
	}{{list, first}, {list, second}, {other, third}} {
		if _, err := n.add(add.list, add.pod); err != nil {
			t.Fatal(err)
		}
	}

	n.weft.Control().Kill()
	if err := n.status(list); code(err) != types.ErrPluginNotAvailable {
		t.Errorf("STATUS without weftd: %v", err)
	}
	fourth := n.pod("c4", a)
	fourth.IfName = "eth3"
	if _, err := n.add(list, fourth); code(err) != types.ErrTryAgainLater {
		t.Errorf("ADD without weftd: %v", err)
	}
	if err := n.del(list, second); code(err) != types.ErrTryAgainLater {
		t.Errorf("DEL without weftd: %v", err)
	}
	if out := a.Run("ip", "-o", "link", "show", "type", "veth"); strings.Count(out, "\n") != 2 {
		t.Errorf("interfaces of the pods: %s", out)
	}

	n.weft.Start()
	if err := n.status(list); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if err := n.collect(list, first); err != nil {
		t.Errorf("GC: %v", err)
	}
	var ids []string
	for _, p := range n.ports() {
		ids = append(ids, p.Name+" "+p.Options["id"])
	}
	if text := strings.Join(ids, "\n"); len(ids) != 3 || !strings.Contains(text, "pods/c1/eth0") || !strings.Contains(text, "other/c3/eth2") || !strings.Contains(text, "own") {
		t.Errorf("ports after GC:\n%s", text)
	}
	n.weft.Weft("del-port", "own")
	for _, err := range []error{n.del(list, first), n.del(list, second), n.collect(other)} {
		if err != nil {
			t.Error(err)
		}
	}
	n.nothing("after GC")
}

// Many pods are added at the same time and deleted at the same time, while weftd is killed.
// Each pod is connected in the end, and nothing stays after the deletion.
func TestManyPods(t *testing.T) {
	t.Parallel()
	_, n := newCNINode(t)
	list := n.network("pods", "10.9.0.2", "")
	pods := make([]*libcni.RuntimeConf, manyPods)
	spaces := make([]netns.NsHandle, manyPods)
	for i := range pods {
		spaces[i] = newSpace(t)
		pods[i] = &libcni.RuntimeConf{ContainerID: fmt.Sprint("many", i), NetNS: spacePath(spaces[i]), IfName: "eth0"}
	}
	var addresses sync.Map // of the pods, by number
	n.withKill("ADD", func(i int) error {
		result, err := n.add(list, pods[i])
		if err != nil {
			_ = n.del(list, pods[i]) // as runtimes do before the next try
			return err
		}
		ips, err := current.NewResultFromResult(result)
		if err == nil {
			addresses.Store(i, ips.IPs[0].Address.IP.String())
		}
		return err
	})
	if t.Failed() {
		return
	}
	for i := 0; i < manyPods; i += 5 {
		address, _ := addresses.Load((i + 1) % manyPods)
		eventually(t, func() error {
			return inSpace(spaces[i], func() error {
				out, err := exec.Command("ping", "-n", "-q", "-c", "1", "-W", "1", fmt.Sprint(address)).CombinedOutput()
				if err != nil {
					return fmt.Errorf("pod %d: ping %v: %w: %s", i, address, err, out)
				}
				return nil
			})
		})
	}
	n.withKill("DEL", func(i int) error { return n.del(list, pods[i]) })
	n.nothing("after DEL")
}

const manyPods = 40

// withKill calls do for all pods at once, and kills weftd when a quarter of the calls has
// returned. It repeats failed calls, as a container runtime does.
func (n *cniNode) withKill(verb string, do func(pod int) error) {
	n.t.Helper()
	var all sync.WaitGroup
	var done atomic.Int32
	quarter := make(chan struct{})
	end := time.Now().Add(cniLimit)
	for i := range manyPods {
		all.Go(func() {
			err := do(i)
			for err != nil && time.Now().Before(end) {
				n.t.Logf("%s of pod %d is repeated: code %d: %v", verb, i, code(err), err)
				time.Sleep(100 * time.Millisecond)
				err = do(i)
			}
			if err != nil {
				n.t.Errorf("%s of pod %d: %v", verb, i, err)
			}
			if done.Add(1) == manyPods/4 {
				close(quarter)
			}
		})
	}
	<-quarter
	n.weft.Control().Kill()
	n.weft.Start()
	all.Wait()
}

// cniLimit is the time limit of a step that normally takes seconds.
const cniLimit = 5 * time.Minute

// newSpace makes a network namespace without a name, which ends with the test.
func newSpace(t *testing.T) netns.NsHandle {
	t.Helper()
	result := make(chan error)
	var space netns.NsHandle
	go func() {
		runtime.LockOSThread() // without UnlockOSThread, so that the thread ends with its goroutine
		var err error
		space, err = netns.New()
		result <- err
	}()
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Close() })
	return space
}

// spacePath returns a path of the namespace for other processes.
func spacePath(space netns.NsHandle) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), space) }

// inSpace calls f on a thread in the namespace.
func inSpace(space netns.NsHandle, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // without UnlockOSThread, so that the thread ends with its goroutine
		if err := netns.Set(space); err != nil {
			result <- err
			return
		}
		result <- f()
	}()
	return <-result
}

// pod describes an attachment of a container in the namespace of a host.
func (n *cniNode) pod(container string, h *lab.Host) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: container, NetNS: "/run/netns/" + h.NS, IfName: "eth0"}
}

// runtime calls do in place of a container runtime: the plugins start in the host's namespace.
func (n *cniNode) runtime(do func(ctx context.Context, cni *libcni.CNIConfig) error) error {
	return n.host.Do(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), cniLimit)
		defer cancel()
		return do(ctx, libcni.NewCNIConfigWithCacheDir([]string{n.plugins}, n.dir+"/results", nil))
	})
}

func (n *cniNode) add(list *libcni.NetworkConfigList, pod *libcni.RuntimeConf) (result types.Result, err error) {
	err = n.runtime(func(ctx context.Context, cni *libcni.CNIConfig) (err error) {
		result, err = cni.AddNetworkList(ctx, list, pod)
		return err
	})
	return result, err
}

func (n *cniNode) del(list *libcni.NetworkConfigList, pod *libcni.RuntimeConf) error {
	return n.runtime(func(ctx context.Context, cni *libcni.CNIConfig) error { return cni.DelNetworkList(ctx, list, pod) })
}

func (n *cniNode) status(list *libcni.NetworkConfigList) error {
	return n.runtime(func(ctx context.Context, cni *libcni.CNIConfig) error { return cni.GetStatusNetworkList(ctx, list) })
}

// collect runs GC. validPods has the attachments to keep.
func (n *cniNode) collect(list *libcni.NetworkConfigList, validPods ...*libcni.RuntimeConf) error {
	args := &libcni.GCArgs{}
	for _, pod := range validPods {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: pod.ContainerID, IfName: pod.IfName})
	}
	return n.host.Do(func() error {
		// Without the cache, libcni knows no attachments that it could delete itself.
		return libcni.NewCNIConfigWithCacheDir([]string{n.plugins}, n.dir+"/none", nil).GCNetworkList(context.Background(), list, args)
	})
}

// code returns the code of a plugin's error, 0 if it has none.
func code(err error) uint {
	var known *types.Error
	if errors.As(err, &known) {
		return known.Code
	}
	return 0
}
