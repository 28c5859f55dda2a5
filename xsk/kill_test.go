// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft/packet"
	"weft/port/porttest"
)

// engine is the main function of the child process that the test kills. It returns the frames that it
// receives.
func engine() {
	var fds []int
	n, _ := strconv.Atoi(os.Getenv("WEFT_XSK_FDS"))
	for i := range n {
		fds = append(fds, 3+i)
	}
	d, err := Open([]byte(os.Getenv("WEFT_XSK_SPEC")), fds)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	b := new(packet.Batch)
	for {
		for i, rx := range d.Rx() {
			b.Reset()
			if rx.Recv(b) < 0 {
				fmt.Println(rx.Fault())
				os.Exit(1)
			}
			for range 4 { // each frame is sent four times, so that the engine is rarely idle
				d.Tx()[i].Send(b, order[:b.N])
			}
			d.Tx()[i].Flush()
			rx.Release()
		}
	}
}

func startEngine(t *testing.T, u *Uplink) *exec.Cmd {
	t.Helper()
	text, err := u.Spec()
	if err != nil {
		t.Fatal(err)
	}
	c := reexec(t, "engine")
	c.Env = append(c.Env, "WEFT_XSK_SPEC="+string(text), fmt.Sprintf("WEFT_XSK_FDS=%d", len(u.FDs())))
	for _, fd := range porttest.Duplicates(t, u.FDs()) {
		f := os.NewFile(uintptr(fd), "")
		defer f.Close()
		c.ExtraFiles = append(c.ExtraFiles, f)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	word := make([]byte, 200)
	if n, _ := out.Read(word); !strings.HasPrefix(string(word[:n]), "ready") {
		_ = c.Process.Kill()
		_ = c.Wait()
		t.Fatalf("engine: %s", word[:n])
	}
	return c
}

// lastStates reports what the killed engine has left in queue 0: s[0] unreleased
// frames, s[1] an unfinished Release, s[2] tx frames that were not published.
func lastStates(t *testing.T, u *Uplink) (s [3]bool) {
	t.Helper()
	off, err := mmapOffsets(u.sockets[0])
	if err != nil {
		t.Fatal(err)
	}
	rx, err1 := mapRing[unix.XDPDesc](u.sockets[0], unix.XDP_PGOFF_RX_RING, off.Rx, u.spec.RingSize)
	tx, err2 := mapRing[unix.XDPDesc](u.sockets[0], unix.XDP_PGOFF_TX_RING, off.Tx, u.spec.RingSize)
	fill, err3 := mapRing[uint64](u.sockets[0], unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, u.spec.RingSize)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	defer rx.unmap()
	defer tx.unmap()
	defer fill.unmap()
	m, _ := u.spec.carve(u.region.Bytes())
	s[0] = m[0].record.lent.Load() != rx.consumer.Load()
	s[1] = fill.producer.Load()-rx.consumer.Load() != uint32(u.spec.RingSize)
	s[2] = m[0].record.sent.Load() != tx.producer.Load()
	return s
}

// An engine is killed at random points under load. The next engine knows where every
// frame is.
func TestTheNextEngineGoesOnWhereOneWasKilled(t *testing.T) {
	kills := 30
	if n, err := strconv.Atoi(os.Getenv("WEFT_XSK_KILLS")); err == nil {
		kills = n // a soak test asks for more kills
	}
	r := newRig(t, 1)
	u := r.setup(Config{RingSize: 64})
	var stop atomic.Bool
	var senders sync.WaitGroup
	conn := r.dial(hostAddr + ":4789")
	senders.Add(1)
	go func() {
		defer senders.Done()
		for p := pattern(700, 1); !stop.Load(); {
			_, _ = conn.Write(p)
		}
	}()
	defer senders.Wait()
	defer stop.Store(true)
	states := make(map[[3]bool]int)
	for i := range kills {
		c := startEngine(t, u)
		time.Sleep(time.Duration(3000+i*1713%7000) * time.Microsecond)
		_ = c.Process.Kill()
		_ = c.Wait()
		states[lastStates(t, u)]++
	}
	t.Logf("killed with frames lent, in the middle of a release, with frames written and not published: %v", states)
	stop.Store(true)
	senders.Wait()

	d := open(t, u)
	// When this frame has arrived, all older frames have arrived or are lost.
	for last := pattern(99, 1); ; {
		waiting(t, d)
		write(t, conn, last)
		if got := recv(t, d, 1); len(got) == 0 {
			t.Fatal("nothing arrives any more")
		} else if slices.ContainsFunc(got, func(f []byte) bool { return string(udpPayload(f)) == string(last) }) {
			break
		}
	}
	waiting(t, d)
	d.allFree(t)
	q := u.Status().Queues[0]
	if q.RxInvalid != 0 || q.TxInvalid != 0 || q.FramesSending != 0 {
		t.Errorf("invalid entries or frames not completed: %+v", q)
	}
	// In every round, as many datagrams arrive as the UMEM has frames for receiving.
	for round := range 3 {
		for i := range 64 {
			write(t, conn, pattern(100, i))
		}
		got := recv(t, d, 64)
		if len(got) != 64 {
			t.Fatalf("round %d: received %d of 64 frames: %+v", round, len(got), u.Status().Queues[0])
		}
		for i := range got {
			if string(udpPayload(got[i])) != string(pattern(100, i)) {
				t.Fatalf("frame %d is not as sent", i)
			}
		}
	}
	if after := u.Status().Queues[0]; after.RxDropped != q.RxDropped || after.RxRingFull != q.RxRingFull || after.RxFillEmpty != q.RxFillEmpty {
		t.Errorf("frames are missing: %+v, before %+v", after, q)
	}
	sent := d.Tx()[0].(*txQueue)
	if sent.tx.producer.Load() == 0 || sent.tx.consumer.Load() != sent.tx.producer.Load() {
		t.Errorf("engines sent %d frames, the kernel took %d", sent.tx.producer.Load(), sent.tx.consumer.Load())
	}
}
