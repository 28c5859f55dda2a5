// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// The kernel counts the frames of each queue of a tap in memory that the engine process maps. So the engine
// process sees without a system call that frames wait. A BPF program does the counting. The tun driver runs
// it for each frame right before it queues the frame (TUNSETFILTEREBPF, Linux 4.16; the mapped array needs
// Linux 5.5). The program accepts all frames. It exists as long as the device.
//
// The count is only a hint. The kernel queues a counted frame a moment later, or drops it if the queue is
// full. It does not count a frame that another device's XDP program redirects to the tap.

// countStride is the distance of two counts in bytes. Each count has a cache line of its own, because
// different workers read the counts.
const countStride = 64

// CountFrames makes the kernel count the frames of each queue. Engine processes that open the tap afterwards
// use the counts. If the kernel refuses, or if the device existed before, they look for frames with system
// calls: see Counted. CountFrames does nothing if the kernel already counts.
func (t *Tap) CountFrames() {
	if t.counts >= 0 {
		return
	}
	if t.uncounted = ""; !t.created {
		t.uncounted = "the device existed before, and another program may use its filter"
		return
	}
	var err error
	if t.counts, err = count(t.fds[0], t.spec.Queues); err != nil {
		t.counts, t.uncounted = -1, err.Error()
	}
	t.spec.Counted = t.counts >= 0
}

// Counted reports whether the kernel counts the frames for the engine processes that open the tap from now
// on. If it does not, reason says why; it is "" if CountFrames was not called.
func (t *Tap) Counted() (yes bool, reason string) { return t.counts >= 0, t.uncounted }

// count makes a BPF map with one count for each queue. It attaches a program that adds to these counts. It
// returns the map's descriptor.
func count(fd, queues int) (int, error) {
	counts, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "weft_queued", Type: ebpf.Array, KeySize: 4, ValueSize: countStride, MaxEntries: uint32(queues), Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return -1, explainCount("map of counts", err)
	}
	defer counts.Close()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "weft_queued", Type: ebpf.SocketFilter, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 12, asm.Word), // load __sk_buff.queue_mapping
		asm.StoreMem(asm.RFP, -4, asm.R2, asm.Word),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "accept"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, wholeFrame).WithSymbol("accept"),
		asm.Return(),
	}})
	if err != nil {
		return -1, explainCount("program that counts", err)
	}
	defer program.Close()
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETFILTEREBPF, program.FD()); err != nil {
		return -1, fmt.Errorf("filter of the tap: %w", err)
	}
	return unix.FcntlInt(uintptr(counts.FD()), unix.F_DUPFD_CLOEXEC, 0)
}

// wholeFrame is the result of the program: the largest number of bytes of a frame to queue. It is so large
// that no frame is truncated.
const wholeFrame = 1 << 18

func explainCount(step string, err error) error {
	if errors.Is(err, unix.EPERM) {
		return errors.New("missing privilege: counting frames in the kernel needs CAP_BPF")
	}
	return fmt.Errorf("%s: %w", step, err)
}
