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

// Modes, in the order in which ModeAuto tries them.
const (
	ModeAuto     = "auto"
	ModeZeroCopy = "zerocopy" // the driver's XDP, the NIC reads and writes the UMEM
	ModeCopy     = "copy"     // the driver's XDP, the kernel copies once
	ModeGeneric  = "generic"  // the kernel's XDP on what the driver has received already
)

// Config says which uplink is wanted.
type Config struct {
	// Dev is the network device, in the process's network namespace.
	Dev string
	// Queues is the number of the device's queues to serve, the first of them;
	// 0: all, up to MaxQueues. Tunnel traffic on the others goes to the kernel.
	Queues int
	// Mode is one of the Mode constants; empty: ModeAuto.
	Mode string
	// Channels is the number of queues the device is to have, while the uplink is
	// there; 0: as it is.
	Channels int
	// Steer has RSS lead to the served queues alone, while the uplink is there.
	Steer bool
	// BusyPoll is for how many microseconds the kernel polls the device in our system
	// calls, instead of having it interrupt (SO_PREFER_BUSY_POLL); 0: not.
	BusyPoll int
	// Replace takes another's XDP program off the device first.
	Replace bool
	// FrameSize in bytes and RingSize in entries; 0: the defaults.
	FrameSize, RingSize int
	// Logger may be nil.
	Logger *slog.Logger
}

// xdpUseSG is XDP_USE_SG, and pieceFollows XDP_PKT_CONTD (include/uapi/linux/
// if_xdp.h).
const (
	xdpUseSG     = 1 << 4
	pieceFollows = 1 << 0
)

// xdpMaxTxSKBBudget is XDP_MAX_TX_SKB_BUDGET, from Linux 6.17 on.
const xdpMaxTxSKBBudget = 9

// Binding again at once after another process closed its socket gives EBUSY:
// the kernel lets go of the queue later, from a work queue. All binds of one
// set-up share the tries: a second at most.
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

// Setup makes an uplink of a network device: sockets on its queues, and the XDP
// program, which takes nothing until SetEndpoints. In ModeAuto the best mode
// that works is used. An error is one line: the cause and what to do; nothing
// stays behind. Where modes were tried it is a *RefusedError.
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
		if err := dev.takeOff(); err != nil {
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
	// Before Linux 5.11, maps and programs count as locked memory.
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

// tryModes attaches and binds in the first mode that works. Zero-copy and copy
// share an attachment, for attaching takes some NICs' links down for seconds.
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
	return &RefusedError{Dev: dev.name, Refusals: u.refused}
}

// attach loads the program and links it to the device, unless that is done. A
// program of someone else is not replaced: the kernel refuses.
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
	p.prog.Close() // the link holds it
	u.link, u.endpoints, u.sockmap = l, p.endpoints, p.sockets
	return nil
}

// openSockets makes the region and the sockets of all queues, binds them, and
// has the program use them.
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

// openSocket makes and binds the socket of one queue. The first queue's socket
// registers the UMEM, the others share it (XDP_SHARED_UMEM) with fill and
// completion rings of their own.
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
	case queue > 0: // the other flags are the first socket's
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

// raiseBudget has one system call send as many frames as are left to wait for it. A
// kernel that does not know how sends kickBudget of them, and is called again.
func raiseBudget(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_XDP, xdpMaxTxSKBBudget, patience) }

// fill gives the kernel the queue's receiving frames.
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
	giveAll(&fill, memory[queue].rx, uint64(u.spec.FrameSize))
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

// detach takes the program off the device, whoever else holds the link.
func (u *Uplink) detach() {
	if u.link != nil {
		_ = u.link.Detach() // fails where the device is gone, and the link with it
	}
	u.closeProgram()
}

// closeProgram closes this process's descriptors of link and maps. Closing a
// nil map is nothing.
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
