// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/internal/testnet"
	"weft/packet"
	"weft/port/porttest"
)

// Frames in several pieces pass along with small frames. Afterwards all UMEM frames are free.
func TestJumboFrames(t *testing.T) {
	for _, cfg := range []Config{{Mode: ModeCopy}, {Mode: ModeGeneric}, {Mode: ModeCopy, FrameSize: 2048}} {
		t.Run(fmt.Sprint(cfg.Mode, cfg.FrameSize), func(t *testing.T) {
			r := newRig(t, 1)
			r.host.Exec("ip", "link", "set", "up0", "mtu", "9000")
			r.peer.Exec("ip", "link", "set", "peer0", "mtu", "9000")
			d := open(t, r.setup(cfg))
			if d.Tx()[0].MTU() != 9014 {
				t.Errorf("MTU %d", d.Tx()[0].MTU())
			}
			in := r.dial(hostAddr + ":4789")
			out := r.listen(r.peer, peerAddr+":9999")
			_ = out.SetReadBuffer(4 << 20)
			sizes := []int{1, 3700, 3800, 4054, 4096, 5000, 8150, 8972, 60}
			b := new(packet.Batch)
			for round := range 100 {
				var frames [][]byte
				for i, n := range sizes {
					p := pattern(n, i+round)
					write(t, in, p)
					frames = append(frames, r.outbound(p, 9999))
				}
				got := recv(t, d, len(sizes))
				if len(got) != len(sizes) {
					t.Fatalf("round %d: received %d frames", round, len(got))
				}
				for i, n := range sizes {
					if !bytes.HasSuffix(got[i], pattern(n, i+round)) {
						t.Fatalf("round %d: %d bytes came in %d", round, n, len(got[i]))
					}
				}
				fill(t, b, frames)
				if n := d.Tx()[0].Send(b, order[:len(sizes)]); n != len(sizes) {
					t.Fatalf("round %d: Send took %d frames", round, n)
				}
				d.Tx()[0].Flush()
				for i, n := range sizes {
					if got := readOne(t, out); !bytes.Equal(got, pattern(n, i+round)) {
						t.Fatalf("round %d: %d bytes arrived of %d", round, len(got), n)
					}
				}
			}
			d.allFree(t)
		})
	}
}

func (r *rig) channels() string {
	out := ""
	r.host.Do(func() {
		_ = withEthtool(func(tool *ethtool.Ethtool) error {
			rx, tx, err := channels(tool, "up0")
			out = fmt.Sprint(rx, tx, err)
			return nil
		})
	})
	return out
}

// Setup sets the number of the device's queues before it counts them. Close restores the old number,
// and so does a Setup that fails.
func TestChannels(t *testing.T) {
	r := newRig(t, 4)
	r.host.Exec("ethtool", "-L", "up0", "rx", "4", "tx", "4")
	if _, err := r.trySetup(Config{Channels: 4, Mode: ModeZeroCopy}); err == nil || r.channels() != "4 4 <nil>" {
		t.Errorf("Setup returned %v and left channels %s", err, r.channels())
	}
	r.peer.Exec("ethtool", "-L", "peer0", "rx", "2", "tx", "2")
	u := r.setup(Config{Channels: 2})
	if s := u.Status(); len(s.Queues) != 2 || r.channels() != "2 2 <nil>" || !strings.Contains(strings.Join(s.Notes, ";"), "channels") {
		t.Errorf("unexpected channels %s, status %+v", r.channels(), s)
	}
	blob, fds, err := u.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	next, err := Restore(blob, porttest.Duplicates(t, fds))
	if err != nil {
		t.Fatal(err)
	}
	r.host.Do(func() { u.Release() })
	r.host.Do(func() { next.Close() })
	if got := r.channels(); got != "4 4 <nil>" {
		t.Errorf("afterwards channels %s", got)
	}
}

// A socket with busy polling sends and receives like any other socket.
func TestBusyPoll(t *testing.T) {
	r := newRig(t, 1)
	files := map[string]string{}
	r.host.Do(func() {
		for _, name := range []string{settingDefer, settingTimeout} {
			text, err := os.ReadFile("/sys/class/net/up0/" + name)
			if err != nil { // this /sys belongs to another namespace
				t.Logf("%v: only the words are tested", err)
				return
			}
			files[name] = string(text)
		}
	})
	u, err := r.trySetup(Config{BusyPoll: 20})
	if len(files) == 0 {
		if err == nil || !strings.Contains(err.Error(), "busy polling needs to write /sys/class/net/up0/") {
			t.Errorf("%v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	d := open(t, u)
	if err := u.SetEndpoints(ownEndpoints); err != nil {
		t.Fatal(err)
	}
	c := r.dial(hostAddr + ":4789")
	for i := range 50 {
		write(t, c, pattern(100, i))
		if got := recv(t, d, 1); len(got) != 1 || !bytes.HasSuffix(got[0], pattern(100, i)) {
			t.Fatalf("frame %d: received %d frames", i, len(got))
		}
	}
	at := r.listen(r.peer, peerAddr+":9999")
	b := new(packet.Batch)
	fill(t, b, [][]byte{r.outbound(pattern(100, 7), 9999)})
	d.Tx()[0].Send(b, order[:1])
	d.Tx()[0].Flush()
	if got := readOne(t, at); !bytes.Equal(got, pattern(100, 7)) {
		t.Errorf("%d bytes arrived", len(got))
	}
	time.Sleep(time.Millisecond)
	r.host.Do(func() {
		u.Close()
		for name, was := range files {
			if text, _ := os.ReadFile("/sys/class/net/up0/" + name); string(text) != was {
				t.Errorf("%s: %s, was %s", name, text, was)
			}
		}
	})
}

func TestBusyPollRefused(t *testing.T) {
	if err := pollBusily(-1, 20); err == nil || !strings.Contains(err.Error(), "busy_poll: bad file descriptor; leave busy_poll= out") {
		t.Errorf("no socket: %v", err)
	}
	for errno, word := range map[unix.Errno]string{unix.ENOPROTOOPT: "needs Linux 5.11; leave busy_poll= out", unix.EPERM: "needs CAP_NET_ADMIN"} {
		if err := busyPollRefused(errno); !strings.Contains(err.Error(), word) {
			t.Errorf("%v: %v", errno, err)
		}
	}
}

// With the option Replace, Setup replaces the XDP program of another process, whether or not it has a
// link. Without the option, Setup fails.
func TestReplace(t *testing.T) {
	for _, linked := range []bool{true, false} {
		r := newRig(t, 1)
		r.host.Do(func() {
			p, err := loadProgram(1, false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.close)
			dev, err := netlink.LinkByName("up0")
			if err != nil {
				t.Fatal(err)
			}
			if !linked {
				err = netlink.LinkSetXdpFd(dev, p.prog.FD())
			} else if l, attachErr := link.AttachXDP(link.XDPOptions{Program: p.prog, Interface: dev.Attrs().Index}); attachErr == nil {
				t.Cleanup(func() { l.Close() })
			} else {
				err = attachErr
			}
			if err != nil {
				t.Fatal(err)
			}
		})
		if _, err := r.trySetup(Config{}); err == nil || !strings.Contains(err.Error(), "or ask for replace=on") {
			t.Errorf("linked %v: %v", linked, err)
		}
		u := r.setup(Config{Replace: true})
		d := open(t, u)
		write(t, r.dial(hostAddr+":4789"), []byte("x"))
		if got := recv(t, d, 1); len(got) != 1 || !u.Attached() {
			t.Errorf("linked %v: received %d frames", linked, len(got))
		}
	}
}

// If Setup cannot remove another XDP program, the error names that program.
func TestReplaceFails(t *testing.T) {
	testnet.NeedsRoot(t, "looks an XDP program up")
	gone := &netdev{name: "gone0", index: 1 << 30, program: 1 << 30}
	if err := gone.removeProgram(); err == nil || !strings.Contains(err.Error(), "af_xdp on gone0: the XDP program that is attached") || !strings.Contains(err.Error(), "cannot be replaced: Link not found") {
		t.Errorf("%v", err)
	}
}
