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
	// FrameSize in bytes and RingSize in entries; 0: the defaults.
	FrameSize, RingSize int
	// Logger may be nil.
	Logger *slog.Logger
}

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
	dev, err := inspect(cfg.Dev)
	if err != nil {
		return nil, err
	}
	if err := dev.check(&cfg); err != nil {
		return nil, err
	}
	// Before Linux 5.11, maps and programs count as locked memory.
	if err := rlimit.RemoveMemlock(); err != nil {
		cfg.Logger.Debug("af_xdp: limit of locked memory", "error", err)
	}
	queues := cfg.Queues
	if queues == 0 {
		queues = min(dev.rx, MaxQueues)
	}
	u := &Uplink{
		ifindex: dev.index, driver: dev.driver, deviceQueues: dev.rx,
		spec: spec{
			Dev: dev.name, Queues: queues, TxQueues: min(queues, dev.tx),
			FrameSize: cfg.FrameSize, RingSize: cfg.RingSize, MTU: dev.mtu,
		},
	}
	if err := u.tryModes(dev, modes); err != nil {
		u.Close()
		return nil, err
	}
	cfg.Logger.Info("af_xdp: uplink set up", "dev", dev.name, "driver", dev.driver, "mode", u.mode,
		"queues", queues, "refused", u.refused)
	return u, nil
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
	p, err := loadProgram(u.spec.Queues)
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
