// SPDX-License-Identifier: Apache-2.0

package differ

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"weft/e2e/lab"
)

// ports is the number of ports of each switch. Their numbers are 1 to 4.
const ports = 4

// answerLimit is the time within which a switch must forward a marker.
const answerLimit = 2 * time.Minute

// sent is a frame that has left a switch at a port.
type sent struct {
	port  int
	frame []byte
}

// pipe is the connection to the ports of a switch: it sends frames to them and receives frames
// from them.
type pipe struct {
	name   string
	socket string // of OpenFlow
	// send sends a frame into a port of the switch.
	send func(port int, frame []byte) error
	// out gets the frames that leave the ports of the switch.
	out chan sent
	// rounds is the number of markers, sent one after the other, after which all earlier frames
	// have left the switch.
	rounds int
}

// Markers are frames that a flow of the test sends out of every port. No flow of a case matches
// them.
const (
	markerType  = 0x88b5
	markerFlows = "table=0,priority=65535,dl_type=0x88b5,dl_dst=02:ff:ff:ff:ff:ff,actions=drop\n" +
		"table=0,priority=65534,dl_type=0x88b5,actions=in_port,all\n"
)

var markerCount atomic.Uint32

// quiet waits until all frames that were sent to the port have left the switch, and returns the
// frames that have left. To this end it sends p.rounds markers, one after the other. Each
// marker has another destination, so Weft's cache has no entry for it, and the marker waits for
// its translation behind the frames that were sent before it.
func (p *pipe) quiet(port int) (frames []sent, err error) {
	for range p.rounds {
		marker := make([]byte, 60)
		marker[0], marker[6] = 2, 2
		binary.BigEndian.PutUint32(marker[2:], markerCount.Add(1))
		binary.BigEndian.PutUint16(marker[12:], markerType)
		if err := p.send(port, marker); err != nil {
			return nil, err
		}
		limit := time.NewTimer(answerLimit)
		for missing := ports; missing > 0; {
			select {
			case s := <-p.out:
				if bytes.Equal(s.frame, marker) {
					missing--
				} else {
					frames = append(frames, s)
				}
			case <-limit.C:
				return nil, fmt.Errorf("%s: %d markers of port %d have not come", p.name, missing, port)
			}
		}
		limit.Stop()
	}
	return frames, nil
}

// afterwards returns the frames that leave the switch during the time "wait", without a marker.
func (p *pipe) afterwards(wait time.Duration) (frames []sent) {
	for end := time.After(wait); ; {
		select {
		case s := <-p.out:
			frames = append(frames, s)
		case <-end:
			return frames
		}
	}
}

// ofctl runs a command of ovs-ofctl on the switch with the OpenFlow version.
func (p *pipe) ofctl(version, verb string, words ...string) (string, error) {
	out, err := exec.Command("ovs-ofctl", append([]string{"-O", version, verb, "unix:" + p.socket}, words...)...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("%s: ovs-ofctl %s %s: %w: %s", p.name, verb, strings.Join(words, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// ovs is Open vSwitch's userspace data path, with dummy devices whose frames go through unix
// sockets.
type ovs struct {
	pipe
	ctl string
}

// environment returns the environment of Open vSwitch's programs, which keeps all their files
// in one directory.
func environment(dir string) []string {
	return []string{"env", "OVS_RUNDIR=" + dir, "OVS_DBDIR=" + dir, "OVS_LOGDIR=" + dir, "OVS_SYSCONFDIR=" + dir}
}

func newOVS(l *lab.Lab) (*ovs, error) {
	h := l.Host("ovs")
	dir := filepath.Join(l.Dir, "ovs.d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	run := func(words ...string) []string { return append(environment(dir), words...) }
	schema, err := schemaFile()
	if err != nil {
		return nil, err
	}
	h.Run(run("ovsdb-tool", "create", dir+"/conf.db", schema)...)
	h.Spawn(run("ovsdb-server", dir+"/conf.db", "--remote=punix:"+dir+"/db.sock", "--unixctl="+dir+"/db.ctl")...)
	db := "--db=unix:" + dir + "/db.sock"
	if err := eventually(func() error {
		_, err := h.Try(run("ovs-vsctl", db, "--timeout=20", "--no-wait", "init")...)
		return err
	}); err != nil {
		return nil, err
	}
	h.Spawn(run("ovs-vswitchd", "--enable-dummy", "unix:"+dir+"/db.sock", "--unixctl="+dir+"/ctl")...)
	words := run("ovs-vsctl", db, "--timeout=120", "add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure",
		"--", "set", "open_vswitch", ".", "other_config:vlan-limit=2")
	for i := 1; i <= ports; i++ {
		name := fmt.Sprint("p", i)
		words = append(words, "--", "add-port", "br0", name, "--", "set", "interface", name, "type=dummy",
			fmt.Sprint("ofport_request=", i), "options:pstream=punix:"+dir+"/"+name+".sock")
	}
	h.Run(words...)
	o := &ovs{pipe: pipe{name: "Open vSwitch", socket: dir + "/br0.mgmt", out: make(chan sent, 4096), rounds: 1}, ctl: dir + "/ctl"}
	var conns [ports + 1]net.Conn
	for i := 1; i <= ports; i++ {
		c, err := net.Dial("unix", fmt.Sprint(dir, "/p", i, ".sock"))
		if err != nil {
			return nil, err
		}
		conns[i] = c
		go o.read(i, c)
	}
	o.send = func(port int, frame []byte) error {
		_, err := conns[port].Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(frame))), frame...))
		return err
	}
	return o, nil
}

// read receives the frames that a dummy device sends. Two bytes with the length precede each
// frame.
func (o *ovs) read(port int, c net.Conn) {
	for {
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		frame := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, frame); err != nil {
			return
		}
		o.out <- sent{port, frame}
	}
}

// schemaFile returns the path of the schema of Open vSwitch's database: that of the installed
// package, or the one beside the program that scripts/setup has fetched.
func schemaFile() (string, error) {
	const name, installed = "vswitch.ovsschema", "/usr/share/openvswitch/vswitch.ovsschema"
	if _, err := os.Stat(installed); err == nil {
		return installed, nil
	}
	program, err := exec.LookPath("ovs-vswitchd")
	return filepath.Join(filepath.Dir(program), name), err
}

// appctl sends ovs-vswitchd a command as ovs-appctl does, and returns the answer.
func (o *ovs) appctl(command string, words ...string) (string, error) {
	c, err := net.Dial("unix", o.ctl)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if words == nil {
		words = []string{}
	}
	if err := json.NewEncoder(c).Encode(map[string]any{"id": 0, "method": command, "params": words}); err != nil {
		return "", err
	}
	var reply struct{ Result, Error any }
	if err := json.NewDecoder(c).Decode(&reply); err != nil {
		return "", err
	}
	if reply.Error != nil {
		return "", fmt.Errorf("ovs-appctl %s: %v", command, reply.Error)
	}
	text, _ := reply.Result.(string)
	return text, nil
}

// weft is a weftd with taps.
type weft struct {
	pipe
	daemon *lab.Daemon
}

func newWeft(l *lab.Lab) (*weft, error) {
	h, far := l.Host("weft"), l.Host("far")
	d := h.Weftd()
	w := &weft{pipe: pipe{name: "Weft", out: make(chan sent, 4096)}, daemon: d}
	w.socket = strings.TrimSuffix(d.Socket, ".sock") + ".mgmt"
	var raws [ports + 1]*lab.Raw
	for i := 1; i <= ports; i++ {
		name := fmt.Sprint("p", i)
		d.Weft("add-port", name, "type=tap", "dev="+name, "netns="+far.NS, fmt.Sprintf("mac=02:00:00:00:ff:%02x", i), "mtu=1500")
		far.Run("ip", "link", "set", name, "up")
		raws[i] = far.Raw(name)
		go w.read(i, raws[i])
	}
	w.send = func(port int, frame []byte) error { return raws[port].Send(frame) }
	return w, nil
}

func (w *weft) read(port int, r *lab.Raw) {
	for {
		frame, err := r.Recv(time.Second)
		if err == nil {
			w.out <- sent{port, frame}
		} else if !errors.Is(err, lab.ErrTimeout) {
			return
		}
	}
}

// eventually calls f until it succeeds, up to a time limit.
func eventually(f func() error) (err error) {
	for end := time.Now().Add(answerLimit); ; time.Sleep(50 * time.Millisecond) {
		if err = f(); err == nil || time.Now().After(end) {
			return err
		}
	}
}
