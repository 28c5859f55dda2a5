// SPDX-License-Identifier: Apache-2.0

package vhost_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/port"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// dpdkFront is a virtio-user port of dpdk-testpmd, with the session and the device that serve it.
// testpmd returns the frames that it receives.
type dpdkFront struct {
	name, args string
	queues     int    // number of queue pairs
	want       uint64 // virtio features that must have been negotiated
	session    *vhost.Session
	engine     vhosttest.Engine
}

// dpdkFronts returns a front end for each variant of DPDK's virtio driver.
func dpdkFronts(queues int) (fronts []*dpdkFront) {
	add := func(packed, mergeable, inOrder, vector int) {
		f := &dpdkFront{
			name:   fmt.Sprintf("packed=%d,mrg=%d,in_order=%d,vec=%d", packed, mergeable, inOrder, vector),
			args:   fmt.Sprintf("packed_vq=%d,mrg_rxbuf=%d,in_order=%d,vectorized=%d,queues=%d,queue_size=256", packed, mergeable, inOrder, vector, queues),
			queues: queues}
		f.want = vhost.FeatureVersion1 | vhost.FeatureRingPacked*uint64(packed) | vhost.FeatureMergeable*uint64(mergeable) |
			vhost.FeatureInOrder*uint64(inOrder)
		fronts = append(fronts, f)
	}
	for i := range 8 {
		add(i&1, i>>1&1, i>>2, 0)
	}
	add(0, 0, 0, 1) // DPDK's vectorised receive and transmit functions of split rings
	add(1, 0, 1, 1) // DPDK's vectorised functions of packed rings, which use AVX-512
	return fronts
}

// TestDPDK sends frames through every variant of DPDK's virtio driver and compares every byte. Now and
// then it kills the device.
func TestDPDK(t *testing.T) {
	if _, err := exec.LookPath("dpdk-testpmd"); err != nil {
		t.Skip("dpdk-testpmd is not installed")
	}
	pairs := []int{1, 2, 4}
	if testing.Short() {
		pairs = []int{2}
	}
	for _, queues := range pairs {
		t.Run(fmt.Sprintf("%d pairs", queues), func(t *testing.T) { exchangeAll(t, dpdkFronts(queues)) })
	}
}

func exchangeAll(t *testing.T, fronts []*dpdkFront) {
	pmd := startDPDK(t, fronts)
	for end := time.Now().Add(60 * time.Second); !pmd.forwards(); time.Sleep(20 * time.Millisecond) {
		pmd.check(t, end, "does not forward")
	}
	for i, f := range fronts {
		t.Run(f.name, func(t *testing.T) {
			for end := time.Now().Add(60 * time.Second); !f.runs(); time.Sleep(5 * time.Millisecond) {
				pmd.check(t, end, fmt.Sprintf("port %d does not run", i))
			}
			f.exchange(t, uint64(i), pmd)
		})
	}
}

// dpdk is the running testpmd.
type dpdk struct {
	log   string
	ended chan struct{}
}

// forwards reports whether testpmd forwards frames. While it starts, it drops them.
func (d *dpdk) forwards() bool {
	text, _ := os.ReadFile(d.log)
	return strings.Contains(string(text), "io packet forwarding packets/burst")
}

func (d *dpdk) check(t *testing.T, end time.Time, name string) {
	t.Helper()
	select {
	case <-d.ended:
	default:
		if time.Now().Before(end) {
			return
		}
	}
	text, _ := os.ReadFile(d.log)
	lines := strings.Split(string(text), "\n")
	t.Fatalf("%s; testpmd said:\n%s", name, strings.Join(lines[max(0, len(lines)-40):], "\n"))
}

func startDPDK(t *testing.T, fronts []*dpdkFront) *dpdk {
	t.Helper()
	dir := t.TempDir()
	args := []string{"-l", "0,1", "--no-pci", "--no-huge", "-m", "512", "--no-shconf", "--no-telemetry", fmt.Sprintf("--file-prefix=weft%d", os.Getpid())}
	for i, f := range fronts {
		path := filepath.Join(dir, fmt.Sprintf("port%d", i))
		s, err := vhost.NewSession(vhost.Config{Path: path, Queues: f.queues}, &f.engine)
		if err != nil {
			t.Fatal(err)
		}
		f.session = s
		go func() { _ = s.Run(context.Background()) }()
		t.Cleanup(s.Close)
		args = append(args, fmt.Sprintf("--vdev=net_virtio_user%d,path=%s,%s", i, path, f.args))
	}
	args = append(args, "--", "-i", "-a", "--nb-cores=1", "--port-topology=loop", "--forward-mode=io", "--txd=256", "--rxd=256",
		fmt.Sprintf("--rxq=%d", fronts[0].queues), fmt.Sprintf("--txq=%d", fronts[0].queues), "--total-num-mbufs=24576", "--no-flush-rx")
	out, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	// Without stdbuf, testpmd would buffer its output.
	cmd := exec.Command("stdbuf", append([]string{"-oL", "dpdk-testpmd"}, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	stdin, err := cmd.StdinPipe() // testpmd exits when its standard input is closed
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d := &dpdk{log: out.Name(), ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(d.ended)
	}()
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Process.Kill()
		<-d.ended
		out.Close()
	})
	return d
}

const (
	dpdkFrames = 4000
	dpdkWindow = 128
	dpdkKill   = 20 // number of passes between kills
	dpdkTurn   = 250
)

func (f *dpdkFront) runs() bool {
	f.engine.Lock()
	defer f.engine.Unlock()
	return f.engine.Device != nil && len(f.engine.Device.Tx()) == f.queues
}

// exchange sends frames through one front end and receives them again. At most dpdkWindow frames are
// in flight.
func (f *dpdkFront) exchange(t *testing.T, seed uint64, pmd *dpdk) {
	var spec vhost.DeviceSpec
	f.engine.Lock()
	err := json.Unmarshal(f.engine.Spec, &spec)
	f.engine.Unlock()
	if err != nil || spec.Features&f.want != f.want {
		t.Fatalf("negotiated %v (%v), expected %v", vhost.FeatureNames(spec.Features), err, vhost.FeatureNames(f.want))
	}
	g := guest(t, vhosttest.Options{Features: vhost.FeatureVersion1 | vhost.FeatureMergeable})
	near := open(t, g, nil)
	frame := func(i int) []byte { return random(seed<<32|uint64(i), 60+i*7%1455) }
	b, sent, received := new(packet.Batch), 0, 0
	deadline := time.Now().Add(60 * time.Second)
	for turn := 1; received < dpdkFrames; turn++ {
		queue := received / dpdkTurn % f.queues
		for sent < dpdkFrames && sent-received < dpdkWindow && sent/dpdkTurn == received/dpdkTurn && g.Tx[0].Send(frame(sent)) {
			sent++
		}
		g.Tx[0].Publish()
		f.engine.Lock()
		far := f.engine.Device
		if far == nil || len(far.Tx()) < f.queues { // testpmd is restarting the port
			f.engine.Unlock()
			time.Sleep(time.Millisecond)
			pmd.check(t, deadline, "the device was stopped")
			continue
		}
		idle := true
		move(b, near.Rx()[0], far.Tx()[queue], near.Tx()[0])
		for _, rx := range far.Rx() {
			n := move(b, rx, near.Tx()[0], near.Tx()[0])
			if n < 0 {
				t.Fatalf("after %d frames: %s", received, rx.Fault())
			}
			idle = idle && n == 0
		}
		f.engine.Unlock()
		if turn%dpdkKill == 0 {
			f.kill(t)
		}
		if idle { // leaves the core to testpmd
			time.Sleep(50 * time.Microsecond)
		}
		for {
			got, _, ok := g.Rx[0].Recv(nil)
			if !ok {
				break
			}
			if !bytes.Equal(got, frame(received)) {
				t.Fatalf("frame %d of %d bytes differs from what was sent, %d bytes", received, len(got), len(frame(received)))
			}
			received++
		}
		g.Rx[0].Refill()
		if turn%100 == 0 {
			pmd.check(t, deadline, fmt.Sprintf("%d frames sent, %d received", sent, received))
		}
	}
}

// move forwards the frames that wait in rx to tx. If drain is not nil, move then flushes it.
func move(b *packet.Batch, rx port.Rx, tx port.Tx, drain port.Tx) int {
	b.Reset()
	n := rx.Recv(b)
	if n > 0 {
		for sent, tries := 0, 0; sent < n && tries < 10_000; tries++ {
			sent += tx.Send(b, allOffloads[sent:n])
			tx.Flush()
			if sent < n {
				time.Sleep(time.Microsecond)
			}
		}
	}
	rx.Release()
	if drain != nil {
		drain.Flush()
	}
	return n
}

// kill closes the device and opens it again, as after a crash.
func (f *dpdkFront) kill(t *testing.T) {
	f.engine.Lock()
	defer f.engine.Unlock()
	spec, fds, running := f.session.Spec(true)
	if !running || f.engine.Device == nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return
	}
	f.engine.Device.Close()
	d, err := vhost.Open(spec, fds)
	if err != nil {
		t.Fatal(err)
	}
	f.engine.Device = d
}
