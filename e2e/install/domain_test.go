// SPDX-License-Identifier: Apache-2.0

package install

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/api"
	"weft/e2e/guest/agent"
	"weft/e2e/lab"
)

// domainXML is a domain of libvirt, as a format for fmt.Sprintf. Its arguments are the path
// of the guest agent's socket, and the path and the mode of the vhost-user socket. QEMU 7.2
// without KVM needs vectors=0, see docs/libvirt.md.
const domainXML = `<domain type='qemu' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>vm</name>
  <uuid>0fac0888-f027-409a-8d66-a9b1f7223347</uuid>
  <memory unit='MiB'>256</memory>
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>/tmp/kernel</kernel>
    <initrd>/tmp/initramfs</initrd>
    <cmdline>console=ttyS0 quiet no_timer_check</cmdline>
  </os>
  <cpu mode='maximum'/>
  <devices>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='/var/log/vm.console'/></serial>
    <serial type='unix'><source mode='bind' path='%s'/></serial>
    <interface type='vhostuser'>
      <mac address='02:00:00:00:00:03'/>
      <source type='unix' path='%s' mode='%s'/>
      <model type='virtio'/>
      <driver rx_queue_size='1024' tx_queue_size='1024'/>
    </interface>
  </devices>
  <qemu:override>
    <qemu:device alias='net0'>
      <qemu:frontend>
        <qemu:property name='vectors' type='unsigned' value='0'/>
        <qemu:property name='host_mtu' type='unsigned' value='1450'/>
      </qemu:frontend>
    </qemu:device>
  </qemu:override>
</domain>
`

// second is the URI of a second libvirtd in the test machine, to which the domain
// migrates. startSecond starts it, with directories and a host UUID of its own.
const (
	second      = "qemu+unix:///system?socket=/run/second/libvirt-sock"
	startSecond = `set -e
mkdir -p /run/second/etc
cp -a /etc/libvirt/. /run/second/etc
rm -rf /run/second/etc/qemu/*.xml
echo 'stdio_handler = "file"' >>/run/second/etc/qemu.conf
cat >>/run/second/etc/libvirtd.conf <<END
unix_sock_dir = "/run/second"
auth_unix_rw = "none"
host_uuid = "75a0c8ac-4a31-4f3c-9d0a-5a4b1cd5e0f2"
END
systemd-run --quiet --unit second -p KillMode=process -p "TemporaryFileSystem=/var/lib/libvirt /run/libvirt" \
	-p BindPaths=/run/second/etc:/etc/libvirt libvirtd --config /etc/libvirt/libvirtd.conf --pid-file /run/libvirt/second.pid
`
)

// virsh runs a command of virsh in the test machine. The command has a time limit, because
// virsh waits for ever for a socket that no process serves.
func (m *machine) virsh(args ...string) string {
	m.t.Helper()
	return m.run(append([]string{"timeout", "120", "virsh"}, args...)...)
}

// installLibvirt installs libvirt in the test machine, from the packages that
// scripts/setup has fetched, unless this machine has it.
func installLibvirt(t *testing.T, m *machine) {
	t.Helper()
	if _, err := exec.LookPath("libvirtd"); err != nil {
		m.installFetched("libvirt")
	}
	m.run("systemctl", "start", "libvirtd")
	m.run("install", "-d", "-o", "libvirt-qemu", "/run/vm")
}

// installFetched installs the packages that scripts/setup has fetched to a directory of .cache.
func (m *machine) installFetched(directory string) {
	m.t.Helper()
	// Without manual pages and translations the installation is faster.
	args := []string{"dpkg", "--force-unsafe-io", "--path-exclude=/usr/share/man/*", "--path-exclude=/usr/share/locale/*", "-i"}
	for _, deb := range fetched(directory, "") {
		data, err := os.ReadFile(deb)
		if err != nil {
			m.t.Fatal(err)
		}
		m.write("/tmp/"+filepath.Base(deb), string(data))
		args = append(args, "/tmp/"+filepath.Base(deb))
	}
	m.run(args...)
}

// fetched returns the packages in a directory of .cache whose names begin with prefix.
func fetched(directory, prefix string) []string {
	root, _ := lab.Root()
	debs, _ := filepath.Glob(filepath.Join(root, ".cache", directory, prefix+"*.deb"))
	return debs
}

// haveLibvirt reports whether installLibvirt finds libvirt.
func haveLibvirt() bool {
	_, err := exec.LookPath("libvirtd")
	return err == nil || len(fetched("libvirt", "libvirt-daemon-system_")) > 0
}

// guest is the connection to the agent of a virtual machine.
type guest struct {
	t       *testing.T
	conn    net.Conn
	replies *json.Decoder
	id      int
}

// guest connects to the agent through a unix socket of the test machine, and waits until
// the agent answers.
func (m *machine) guest(path string) *guest {
	m.t.Helper()
	g := &guest{t: m.t}
	m.eventually("the virtual machine's agent answers", func() bool {
		if g.conn != nil {
			g.conn.Close()
		}
		conn, err := net.Dial("unix", "/proc/"+m.pid+"/root"+path)
		if err != nil {
			return false
		}
		g.conn, g.replies = conn, json.NewDecoder(conn)
		// Until the agent has opened its port, requests are lost.
		_, err = g.ask(5*time.Second, agent.Request{Run: []string{"busybox", "true"}})
		return err == nil
	})
	m.t.Cleanup(func() { g.conn.Close() })
	return g
}

func (g *guest) send(r agent.Request) error {
	data, err := json.Marshal(r)
	if err == nil {
		err = g.conn.SetWriteDeadline(time.Now().Add(patience))
	}
	if err == nil {
		_, err = g.conn.Write(append(data, '\n'))
	}
	return err
}

func (g *guest) ask(limit time.Duration, r agent.Request) (reply agent.Reply, err error) {
	g.id++
	r.ID = g.id
	if err := g.conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return reply, err
	}
	if err := g.send(r); err != nil {
		return reply, err
	}
	for reply.ID != r.ID {
		if err := g.replies.Decode(&reply); err != nil {
			return reply, err
		}
	}
	return reply, nil
}

func (g *guest) run(r agent.Request) (output string) {
	g.t.Helper()
	reply, err := g.ask(patience, r)
	if err != nil || reply.Exit != 0 {
		g.t.Fatalf("virtual machine: %+v: %v %+v", r, err, reply)
	}
	return reply.Output
}

// received matches the lines in an iperf3 server's log about intervals in which bytes arrived.
var received = regexp.MustCompile(` sec +[\d.]*[1-9][\d.]* +.?Bytes`)

// startStream starts a TCP connection from the virtual machine to the network namespace a.
func (m *machine) startStream(g *guest) {
	m.t.Helper()
	m.run("systemd-run", "--quiet", "--unit", "stream", "ip", "netns", "exec", "a",
		"iperf3", "-s", "-i", "0.2", "--forceflush", "--logfile", "/tmp/stream.log")
	m.eventually("iperf3 listens", func() bool { return strings.Contains(m.read("/tmp/stream.log"), "listening") })
	g.run(agent.Request{Spawn: []string{"iperf3", "-c", "10.0.0.1", "-b", "5M", "-t", "36000"}})
	m.streams()
}

// streams waits until the server has received further bytes. The client must not have connected
// again.
func (m *machine) streams() {
	m.t.Helper()
	intervals := func() int { return len(received.FindAllString(m.read("/tmp/stream.log"), -1)) }
	before := intervals()
	m.eventually("the TCP connection transfers bytes", func() bool { return intervals() >= before+3 })
	if log := m.read("/tmp/stream.log"); strings.Count(log, " connected to ") != 1 || strings.Contains(log, "error") {
		m.t.Errorf("the TCP connection broke:\n%s", log)
	}
}

// portIs waits until a port has this state.
func (m *machine) portIs(name, state string) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("port %s is %s", name, state), func() bool {
		return slices.ContainsFunc(m.show().Ports, func(p api.Port) bool { return p.Name == name && p.State == state })
	})
}

// attach defines the domain, starts it with the guest's kernel, and assigns an address. It
// starts the domain twice: with a socket of the group kvm, then with a socket of the user
// libvirt-qemu.
func (m *machine) attach() *guest {
	m.t.Helper()
	kernel, err := lab.GuestImage("/proc/" + m.pid + "/root/tmp/initramfs")
	if err != nil {
		m.t.Fatal(err)
	}
	data, err := os.ReadFile(kernel)
	if err != nil {
		m.t.Fatal(err)
	}
	m.write("/tmp/kernel", string(data))
	m.write("/tmp/vm.xml", fmt.Sprintf(domainXML, "/run/vm/agent", "/run/weft/vm.sock", "client"))
	m.virsh("define", "/tmp/vm.xml")

	m.addPort("vm", "type=vhost-user", "path=/run/weft/vm.sock", "socket-group=kvm", "socket-mode=0660", "mtu=1450")
	m.virsh("start", "vm")
	m.virsh("destroy", "vm")
	m.run("weft", "del-port", "vm")
	m.addPort("vm", "type=vhost-user", "path=/run/weft/vm.sock", "socket-owner=libvirt-qemu", "socket-mode=0600", "mtu=1450")
	m.virsh("start", "vm")
	m.run("pgrep", "-u", "libvirt-qemu", "-f", "qemu-system")
	g := m.guest("/run/vm/agent")
	g.run(agent.Request{Run: []string{"ip", "address", "add", "10.0.0.3/24", "dev", "eth0"}})
	g.run(agent.Request{Run: []string{"ip", "link", "set", "eth0", "up"}})
	if link := g.run(agent.Request{Run: []string{"ip", "link", "show", "eth0"}}); !strings.Contains(link, "mtu 1450 ") {
		m.t.Errorf("the guest was not told the MTU: %s", link)
	}
	return g
}

// migrate moves the domain to a second libvirtd. There QEMU makes the socket of the port
// named moved, and the switch connects to it.
func (m *machine) migrate() {
	m.t.Helper()
	m.run("sh", "-c", startSecond)
	m.eventually("the second libvirtd answers", func() bool {
		_, err := m.try("timeout", "10", "virsh", "-c", second, "list")
		return err == nil
	})
	m.write("/tmp/moved.xml", fmt.Sprintf(domainXML, "/run/vm/agent2", "/run/vm/moved.sock", "server"))
	m.virsh("migrate", "--live", "vm", second, "--xml", "/tmp/moved.xml", "--migrateuri", "unix:///run/vm/migration")
	m.portIs("moved", "up")
	m.portIs("vm", "waiting")
}

// The test installs the package, attaches a domain of libvirt to the switch, upgrades the
// package, migrates the domain, and purges the package. libvirt runs as Debian installs it:
// QEMU has the user libvirt-qemu. Until the migration QEMU connects to the switch's socket;
// afterwards the switch connects to QEMU's. The upgrade loses no ping, and the TCP
// connection does not break.
func TestLibvirt(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: boots a machine of namespaces")
	}
	if !haveLibvirt() {
		t.Skip("libvirt-daemon-system is not there; run scripts/setup")
	}
	m := boot(t, packages(t))
	installLibvirt(t, m)
	m.run("apt-get", "-qq", "install", "-y", m.deb("1.0"))
	m.run("usermod", "-aG", "libvirt-qemu", "weft") // lets the upgraded weftd connect to the socket of the port named moved
	m.run("ip", "netns", "add", "a")
	m.addPort("a", "type=tap", "netns=a")
	m.addPort("moved", "type=vhost-user", "path=/run/vm/moved.sock", "mode=client", "mtu=1450")
	m.run("weft", "add-flow", "actions=normal")
	m.run("ip", "-n", "a", "addr", "add", "10.0.0.1/24", "dev", "a")
	// A guest that stalls does not answer ARP.
	m.run("ip", "-n", "a", "neigh", "replace", "10.0.0.3", "lladdr", "02:00:00:00:00:03", "dev", "a", "nud", "permanent")
	g := m.attach()
	pings := m.startTrain("pings", "10.0.0.3")
	m.startStream(g)

	m.run("dpkg", "-i", m.deb("1.1"))
	if s := m.show(); s.Commit != "second" || s.EngineCommit != "second" {
		t.Errorf("upgraded: %+v", s)
	}
	m.streams()
	lost, sent, longest := pings.lost()
	t.Logf("upgrade: %d of %d pings lost, longest round trip %v", lost, sent, longest)
	if lost != 0 {
		t.Errorf("the upgrade lost %d of %d pings", lost, sent)
	}

	m.migrate()
	m.streams()
	lost, sent, _ = pings.lost()
	t.Logf("migration: %d of %d pings lost", lost, sent)

	m.eventually("the domain ends", func() bool {
		_, _ = m.try("timeout", "120", "virsh", "-c", second, "destroy", "vm") // error ignored: a busy QEMU may need a second attempt
		return strings.TrimSpace(m.virsh("-c", second, "list", "--all", "--name")) == ""
	})
	m.portIs("moved", "waiting")
	m.virsh("undefine", "vm")
	m.run("apt-get", "-qq", "purge", "-y", "weft")
	// A character device in /changed marks a deleted file of this machine.
	if left := m.run("find", "/changed", "/run", "-name", "*weft*", "-not", "-path", "/changed/var/log/*", "-not", "-type", "c"); left != "" {
		t.Errorf("left by the purge: %s", left)
	}
}
