// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"weft/internal/shm"
)

// Values of Config.Mode, in the order in which ModeAuto tries them.
const (
	ModeAuto     = "auto"
	ModeZeroCopy = "zerocopy" // driver runs the XDP program; the NIC reads and writes the UMEM
	ModeCopy     = "copy"     // driver runs the XDP program; the kernel copies each frame once
	ModeGeneric  = "generic"  // kernel runs the XDP program, behind the driver's receive path
)

// Config describes the wanted uplink.
type Config struct {
	// Dev is the network device, in the network namespace of this process.
	Dev string
	// Queues is the number of device queues that the uplink serves, from queue 0 on; 0: all, up to
	// MaxQueues. Tunnel traffic that arrives on other queues goes to the kernel's stack.
	Queues int
	// Mode is one of the Mode constants; "" means ModeAuto.
	Mode string
	// Channels is the number of queues that Setup gives the device; 0: unchanged. Close
	// restores the old number.
	Channels int
	// Steer configures the NIC's RSS so that traffic goes only to the served queues.
	// Close restores the old RSS table.
	Steer bool
	// BusyPoll is the time in µs for which a system call polls the device
	// (SO_PREFER_BUSY_POLL), so that the queue needs no interrupts; 0: no busy polling.
	BusyPoll int
	// Replace lets Setup remove another process's XDP program from the device.
	Replace bool
	// FrameSize is the size of a UMEM frame in bytes. RingSize is the number of entries
	// of each ring. If one of them is 0, it has its default.
	FrameSize, RingSize int
	// Logger may be nil: nothing is logged.
	Logger *slog.Logger
}

// xdpUseSG is the bind flag XDP_USE_SG, which allows frames in several pieces (UMEM frames).
// pieceFollows is the descriptor flag XDP_PKT_CONTD: the frame continues in the next descriptor
// (include/uapi/linux/if_xdp.h).
const (
	xdpUseSG     = 1 << 4
	pieceFollows = 1 << 0
)

// xdpMaxTxSKBBudget is the socket option XDP_MAX_TX_SKB_BUDGET (Linux 6.17): the largest number of
// frames that one system call sends.
const xdpMaxTxSKBBudget = 9

// bindTries is the number of binds that may fail with EBUSY in one Setup. bindPause is the time before
// the next try. After another process has closed its socket on a queue, binds fail with EBUSY until
// the kernel has released the queue.
const (
	bindTries = 50
	bindPause = 20 * time.Millisecond
)

func (c *Config) complete() ([]string, error) {
	if c.Dev == "" {
		return nil, errors.New("af_xdp: a device name is missing")
	}
	if c.FrameSize == 0 {
		c.FrameSize = DefaultFrameSize
	}
	if c.RingSize == 0 {
		c.RingSize = DefaultRingSize
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := checkSizes(c.FrameSize, c.RingSize); err != nil {
		return nil, fmt.Errorf("af_xdp on %s: %w", c.Dev, err)
	}
	if c.Channels < 0 || c.Channels > MaxQueues {
		return nil, fmt.Errorf("af_xdp on %s: %d channels: expected 1 to %d, or 0 to leave them", c.Dev, c.Channels, MaxQueues)
	}
	if c.Queues < 0 || c.Queues > MaxQueues {
		return nil, fmt.Errorf("af_xdp on %s: %d queues: expected 1 to %d, or 0 for all", c.Dev, c.Queues, MaxQueues)
	}
	switch c.Mode {
	case ModeAuto, "":
		return []string{ModeZeroCopy, ModeCopy, ModeGeneric}, nil
	case ModeZeroCopy, ModeCopy, ModeGeneric:
		return []string{c.Mode}, nil
	}
	return nil, fmt.Errorf("af_xdp on %s: mode %q: expected auto, zerocopy, copy or generic", c.Dev, c.Mode)
}

// Setup sets up a network device as an uplink: an AF_XDP socket on each served queue, and the XDP
// program. The program redirects nothing before SetEndpoints. ModeAuto selects the best mode that
// works. The text of an error is one line with the cause and the remedy. A failed Setup leaves nothing
// behind.
func Setup(cfg Config) (*Uplink, error) {
	modes, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	u := &Uplink{spec: spec{Dev: cfg.Dev, BusyPoll: cfg.BusyPoll}, steered: cfg.Steer}
	if err := u.setup(&cfg, modes); err != nil {
		u.Close()
		return nil, err
	}
	cfg.Logger.Info("af_xdp: uplink set up", "dev", u.spec.Dev, "driver", u.driver, "mode", u.mode,
		"queues", u.spec.Queues, "refused", u.refused)
	return u, nil
}

func (u *Uplink) setup(cfg *Config, modes []string) error {
	dev, err := inspect(cfg.Dev)
	if err != nil {
		return err
	}
	if dev.program != 0 && cfg.Replace {
		if err := dev.removeProgram(); err != nil {
			return err
		}
	}
	u.driver = dev.driver
	if err := u.changeSettings(cfg); err != nil {
		return err
	}
	if cfg.Channels > 0 {
		if dev, err = inspect(cfg.Dev); err != nil {
			return err
		}
	}
	if err := dev.check(cfg); err != nil {
		return err
	}
	dev.frame = cfg.FrameSize
	// Before Linux 5.11, BPF memory counts as locked memory.
	if err := rlimit.RemoveMemlock(); err != nil {
		cfg.Logger.Debug("af_xdp: limit of locked memory", "error", err)
	}
	queues := cfg.Queues
	if queues == 0 {
		queues = min(dev.rx, MaxQueues)
	}
	u.ifindex, u.deviceQueues = dev.index, dev.rx
	u.spec.Queues, u.spec.TxQueues, u.spec.MTU = queues, min(queues, dev.tx), dev.mtu
	u.spec.FrameSize, u.spec.RingSize = cfg.FrameSize, cfg.RingSize
	u.spec.Pieces = dev.pieces()
	if cfg.Steer {
		if err := u.steer(); err != nil {
			return err
		}
	}
	return u.tryModes(dev, modes)
}

// tryModes attaches the XDP program and binds the sockets in the first mode that works. Zero-copy and
// copy mode share one attachment, because an attachment may take the link down for seconds. The error
// is a *refusedError.
func (u *Uplink) tryModes(dev *netdev, modes []string) error {
	for _, mode := range modes {
		if u.link != nil && mode == ModeGeneric {
			u.detach()
		}
		err := u.attach(dev, mode)
		if err == nil {
			if err = u.openSockets(dev, mode); err == nil {
				u.mode = mode
				return nil
			}
			u.closeSockets()
		}
		u.refused = append(u.refused, Refusal{Mode: mode, Reason: err.Error()})
	}
	return &refusedError{Dev: dev.name, Refusals: u.refused}
}

// attach loads the XDP program and attaches it to the device, unless it is attached already. The
// kernel refuses to replace another process's program.
func (u *Uplink) attach(dev *netdev, mode string) error {
	if u.link != nil {
		return nil
	}
	p, err := loadProgram(u.spec.Queues, u.spec.Pieces)
	if err != nil {
		return explain(stepLoad, mode, dev, 0, err)
	}
	flags := link.XDPDriverMode
	if mode == ModeGeneric {
		flags = link.XDPGenericMode
	}
	l, err := link.AttachXDP(link.XDPOptions{Program: p.prog, Interface: dev.index, Flags: flags})
	if err != nil {
		p.close()
		return explain(stepAttach, mode, dev, 0, err)
	}
	p.prog.Close() // the link holds the program
	u.link, u.endpoints, u.sockmap = l, p.endpoints, p.sockets
	return nil
}

// openSockets makes the shared memory and the sockets of all queues. It binds the
// sockets and adds them to the XDP program's map.
func (u *Uplink) openSockets(dev *netdev, mode string) error {
	_, size := u.spec.carve(nil)
	var err error
	if u.region, err = shm.Create("umem-"+dev.name, size); err != nil {
		return err
	}
	for queue := range u.spec.Queues {
		fd, err := u.openSocket(dev, mode, queue)
		if err != nil {
			return err
		}
		u.sockets = append(u.sockets, fd)
		if queue == 0 {
			options, err := unix.GetsockoptInt(fd, unix.SOL_XDP, unix.XDP_OPTIONS)
			if err != nil {
				return explain(stepRings, mode, dev, queue, err)
			}
			u.spec.ZeroCopy = options&unix.XDP_OPTIONS_ZEROCOPY != 0
		}
	}
	for queue, fd := range u.sockets {
		if err := u.sockmap.Put(uint32(queue), uint32(fd)); err != nil {
			return explain(stepMap, mode, dev, queue, err)
		}
	}
	return nil
}

// openSocket makes and binds the socket of one queue. The socket of queue 0 registers
// the UMEM. The other sockets share this UMEM (XDP_SHARED_UMEM).
func (u *Uplink) openSocket(dev *netdev, mode string, queue int) (_ int, err error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, explain(stepSocket, mode, dev, queue, err)
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
		}
	}()
	if queue == 0 {
		if err := registerUmem(fd, u.region.Bytes()[:u.spec.umemBytes()], u.spec.FrameSize); err != nil {
			return -1, explain(stepMemory, mode, dev, queue, err)
		}
	}
	rings := []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING}
	if queue < u.spec.TxQueues {
		rings = append(rings, unix.XDP_TX_RING)
	}
	for _, r := range rings {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, r, u.spec.RingSize); err != nil {
			return -1, explain(stepRings, mode, dev, queue, err)
		}
	}
	if queue < u.spec.TxQueues {
		raiseBudget(fd)
	}
	if u.spec.BusyPoll > 0 {
		if err := pollBusily(fd, u.spec.BusyPoll); err != nil {
			return -1, err
		}
	}
	if err := u.fill(fd, queue); err != nil {
		return -1, explain(stepRings, mode, dev, queue, err)
	}
	addr := &unix.SockaddrXDP{Ifindex: uint32(dev.index), QueueID: uint32(queue)}
	switch {
	case queue > 0: // the socket uses the UMEM and the flags of queue 0
		addr.Flags, addr.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(u.sockets[0])
	case mode == ModeZeroCopy:
		addr.Flags = unix.XDP_USE_NEED_WAKEUP | unix.XDP_ZEROCOPY
	default:
		addr.Flags = unix.XDP_USE_NEED_WAKEUP | unix.XDP_COPY
	}
	if u.spec.Pieces && queue == 0 {
		addr.Flags |= xdpUseSG
	}
	for {
		if err = unix.Bind(fd, addr); !errors.Is(err, unix.EBUSY) || u.busy == bindTries {
			break
		}
		u.busy++
		time.Sleep(bindPause)
	}
	if err != nil {
		return -1, explain(stepBind, mode, dev, queue, err)
	}
	return fd, nil
}

// raiseBudget asks the kernel to send up to maxPostponed frames per system call on the socket fd. It
// ignores the error of a kernel before 6.17.
func raiseBudget(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_XDP, xdpMaxTxSKBBudget, maxPostponed) }

// fill puts the UMEM frames of a queue that are for receiving on the fill ring of its socket fd.
func (u *Uplink) fill(fd, queue int) error {
	off, err := mmapOffsets(fd)
	if err != nil {
		return err
	}
	fill, err := mapRing[uint64](fd, unix.XDP_UMEM_PGOFF_FILL_RING, off.Fr, u.spec.RingSize)
	if err != nil {
		return err
	}
	memory, _ := u.spec.carve(u.region.Bytes())
	fillAll(&fill, memory[queue].rx, uint64(u.spec.FrameSize))
	fill.unmap()
	return nil
}

func (u *Uplink) closeSockets() {
	closeAll(u.sockets)
	u.sockets = nil
	if u.region != nil {
		_ = u.region.Close()
		u.region = nil
	}
}

// detach removes the XDP program from the device, even while the engine process has the program's link open.
func (u *Uplink) detach() {
	if u.link != nil {
		_ = u.link.Detach() // fails only if the device is gone
	}
	u.closeProgram()
}

// closeProgram closes this process's descriptors of the XDP program's link and maps.
func (u *Uplink) closeProgram() {
	if u.link != nil {
		_ = u.link.Close()
	}
	_ = u.endpoints.Close()
	_ = u.sockmap.Close()
	u.link, u.endpoints, u.sockmap = nil, nil, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
