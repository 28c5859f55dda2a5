// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"weft/control/watchdog"
	"weft/internal/shm"
	"weft/vhost"
	"weft/vhost/vhosttest"
)

// This file has attacks of a vhost-user front end through its socket, its file descriptors and its
// memory.

const echoes = "actions=in_port"

// ignoreClosed returns nil if err means that the switch has closed the connection,
// which is a valid answer to an attack. It returns any other error unchanged.
func ignoreClosed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// manyPorts is the number of ports that an attack with attack.message uses in turn, because the switch
// limits the rate of messages of each port.
const manyPorts = 8

// socketOf returns the path of the vhost-user socket that the attack uses now. An attack with
// attack.message uses manyPorts sockets in turn.
func (p *play) socketOf() string {
	if p.message {
		return p.site.socket(fmt.Sprint(p.name, "-", p.repeats%manyPorts))
	}
	return p.site.socket(p.name)
}

func ports(flow string, options ...string) func(p *play) error {
	return func(p *play) error {
		if !p.message {
			_, err := p.port("", flow, options...)
			return err
		}
		for i := range manyPorts {
			if _, err := p.port(fmt.Sprint("-", i), flow, options...); err != nil {
				return err
			}
		}
		return nil
	}
}

func echoPort(options ...string) func(p *play) error { return ports(echoes, options...) }

func attached(o vhosttest.Options, f func(g *guest) error) func(p *play) error {
	return func(p *play) error {
		g, err := p.guest(p.socketOf(), o)
		if err != nil {
			return err
		}
		defer g.close()
		return ignoreClosed(f(g))
	}
}

// negotiated connects a front end to the switch and negotiates features. It then calls "do" with the
// guest and the front end. The switch does not have the guest's memory yet.
func (p *play) negotiated(do func(g *vhosttest.Guest, f *vhosttest.FrontEnd) error) error {
	return p.negotiatedWith(vhosttest.Options{Num: 64}, do)
}

func (p *play) negotiatedWith(o vhosttest.Options, do func(g *vhosttest.Guest, f *vhosttest.FrontEnd) error) error {
	o.Features = plainFeatures
	g, err := vhosttest.New(o)
	if err != nil {
		return err
	}
	defer g.Close()
	f, err := vhosttest.Dial(p.socketOf())
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Negotiate(g); err != nil {
		return ignoreClosed(err)
	}
	return do(g, f)
}

func (g *guest) message(request uint32, payload []byte, fds ...int) error {
	return g.front.Send(request, vhosttest.Version, payload, fds...)
}

func frontEndAttacks() []*attack {
	return append([]*attack{
		{name: "call-eventfd", attacker: "front end", summary: "makes its call eventfd blocking and fills it, again while the device runs",
			setup: echoPort(), play: attached(vhosttest.Options{Interrupts: true}, blockCalls)},
		{name: "call-eventfd-before", attacker: "front end", summary: "the same before the device starts",
			setup: echoPort(), play: blockCallsBefore},
		{name: "kick-eventfd", attacker: "front end", summary: "makes its kick eventfd blocking and empties it when the switch is about to",
			setup: echoPort(), play: attached(vhosttest.Options{}, blockKicks)},
		{name: "kick-storm", attacker: "front end", summary: "keeps its kick readable all the time",
			setup: echoPort(), play: attached(vhosttest.Options{}, stormKicks)},
		{name: "unserved-memory", attacker: "front end", summary: "gives memory of a file on FUSE whose pages are never served",
			setup: unservedSetup, play: unservedMemory},
		{name: "dirty-log-chains", attacker: "front end", summary: "LOG_ALL, and receive chains of 1,000 descriptors of 4 GiB over a sparse file",
			setup: echoPort(), play: dirtyChains},
		{name: "giant-memory", attacker: "front end", summary: "regions of terabytes in all of sparse files", message: true,
			setup: echoPort(), play: giantMemory},
		{name: "memory-truncated", attacker: "front end", summary: "truncates its memory while frames are copied out of it", message: true,
			setup: echoPort(), play: attached(vhosttest.Options{}, truncateWhileSending)},
		{name: "memory-punched", kills: true, attacker: "front end", summary: "punches holes into its memory without end while frames pass",
			setup: counting(echoPort()), play: punchMemory, check: hangsEnd},
		{name: "memory-punched-whole", exclusive: true, kills: true, attacker: "front end",
			summary: "punches all of a memory file of gigabytes at once: whoever touches it meanwhile waits in the kernel",
			setup:   counting(echoPort()), play: punchWhole, check: hangsEnd},
		{name: "umem-faults", attacker: "front end", summary: "truncates its memory while frames are gathered into the uplink's UMEM", message: true,
			setup: ports("actions=output:overlay"), play: attached(vhosttest.Options{}, truncateIntoUplink), check: uplinkSends},
		{name: "packet-socket-faults", attacker: "front end", summary: "the same with an uplink of packet sockets", uplink: "af_packet", message: true,
			setup: ports("actions=output:overlay"), play: attached(vhosttest.Options{}, truncateIntoUplink), check: uplinkSends},
		{name: "lingering-descriptors", attacker: "front end", summary: "hands over TCP sockets that linger on close, as SET_BACKEND_REQ_FD", message: true,
			setup: echoPort(), play: lingering},
		{name: "owner-flood", attacker: "front end", summary: "SET_OWNER without end",
			setup: echoPort(), play: repeatRequest(vhosttest.SetOwner)},
		{name: "feature-flood", attacker: "front end", summary: "asks for features without reading the answers",
			setup: echoPort(), play: repeatRequest(vhosttest.GetFeatures)},
		{name: "slow-messages", attacker: "front end", summary: "30 front ends stop in the middle of a message",
			setup: slowSetup, play: slowMessages},
		{name: "attach-detach", attacker: "front end", summary: "attaches and goes away", message: true,
			setup: echoPort(), play: attached(vhosttest.Options{}, func(*guest) error { return nil })},
		{name: "attach-frames-detach", attacker: "front end", summary: "attaches, echoes and goes away with frames in flight", message: true,
			setup: echoPort(), play: attached(vhosttest.Options{}, func(g *guest) error {
				err := g.echo()
				for range 32 {
					g.Tx[0].Send(make([]byte, 64))
				}
				g.Tx[0].Publish()
				return err
			})},
		{name: "ring-restarts", attacker: "front end", summary: "stops and starts its rings", message: true,
			setup: echoPort(), play: restartRings},
		{name: "resets", attacker: "front end", summary: "RESET_DEVICE and a new set-up, again and again", message: true,
			setup: echoPort(), play: resets},
		{name: "log-toggling", attacker: "front end", summary: "turns LOG_ALL on and off while frames pass", message: true,
			setup: echoPort(), play: toggleLog},
		{name: "memory-table-changes", attacker: "front end", summary: "sends its memory table anew while frames pass", message: true,
			setup: echoPort(), play: memoryTables},
		{name: "announcements", attacker: "front end", summary: "SEND_RARP of addresses that it makes up", message: true,
			setup: echoPort(), play: announcements},
		{name: "descriptor-flood", attacker: "front end", summary: "messages with more descriptors than they may have", message: true,
			setup: echoPort(), play: attached(vhosttest.Options{}, func(g *guest) error {
				fds := make([]int, 200)
				for i := range fds {
					fds[i] = g.FD()
				}
				return g.message(vhosttest.SetMemTable, table(g.Regions()[0]), fds...)
			})},
		{name: "broken-rings", attacker: "front end", summary: "everything that no driver does to a ring, index running wild among it", message: true,
			setup: echoPort(), play: brokenRings},
		{name: "inflight-large", attacker: "front end", summary: "inflight buffers of 16 queue pairs with every descriptor marked", message: true,
			setup: echoPort("queues=16"), play: inflightLarge},
		{name: "symlinked-socket", attacker: "client", summary: "socket paths that are links to others' sockets and files",
			play: symlinks},
	}, hugeAttacks()...)
}

// setBlocking clears O_NONBLOCK of a descriptor. The switch shares the open file description, so its
// own reads and writes can then block, too.
func setBlocking(fd int) error { return unix.SetNonblock(fd, false) }

var fullCounter = []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// fill makes an eventfd blocking and sets its counter to the maximum, so that the switch's next write to
// it would block.
func fill(fd int) {
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if n, _ := unix.Poll(poll, 0); n == 1 {
		_ = unix.SetNonblock(fd, true)
		shm.DrainOwn(fd)
		_, _ = unix.Write(fd, fullCounter)
	}
	_ = setBlocking(fd)
}

// relent empties an eventfd that fill has filled. A write that blocks on it then continues. relent
// itself never blocks.
func relent(fd int) {
	_ = unix.SetNonblock(fd, true)
	for range 8 {
		_, _ = unix.Preadv2(fd, [][]byte{make([]byte, 8)}, -1, unix.RWF_NOWAIT)
		time.Sleep(time.Millisecond)
	}
}

// blockCalls fills the guest's call eventfds until the attack ends, so that a notification by the switch
// could block.
func blockCalls(g *guest) error {
	if err := g.echo(); err != nil {
		return err
	}
	fds := []int{g.Rx[0].CallFD(), g.Tx[0].CallFD()}
	for _, fd := range fds {
		defer relent(fd)
	}
	for !g.play.expired() {
		for _, fd := range fds {
			fill(fd)
		}
		g.Tx[0].Send(make([]byte, 64))
		g.Tx[0].Publish()
		time.Sleep(time.Millisecond)
		g.drain()
		g.Tx[0].Reclaim()
	}
	return nil
}

func blockCallsBefore(p *play) error {
	g, err := vhosttest.New(vhosttest.Options{Num: 64, Features: plainFeatures, Interrupts: true})
	if err != nil {
		return err
	}
	defer g.Close()
	for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
		fill(q.CallFD())
		defer relent(q.CallFD())
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() { // again and again, because the switch sets O_NONBLOCK at SET_VRING_CALL
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
				_ = setBlocking(q.CallFD())
			}
			time.Sleep(20 * time.Microsecond)
		}
	}()
	f, err := vhosttest.Dial(p.socketOf())
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Attach(g); err != nil {
		return ignoreClosed(err)
	}
	for !p.expired() {
		g.Tx[0].Send(make([]byte, 64))
		g.Tx[0].Publish()
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// blockKicks tries to make the switch block in a read of the guest's kick eventfd. The attacker makes
// the eventfd blocking, and a second thread of it reads the eventfd too. If this thread reads a kick
// before the switch, the switch's read finds none and waits.
func blockKicks(g *guest) error {
	fd := g.Tx[0].KickFD()
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var b [8]byte
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = unix.Read(fd, b[:])
			}
		}
	}()
	for !g.play.expired() {
		_ = setBlocking(fd)
		shm.SignalOwn(fd)
		time.Sleep(time.Duration(g.play.rng.IntN(20)) * time.Millisecond)
	}
	close(stop)
	for {
		_ = unix.SetNonblock(fd, true)
		shm.SignalOwn(fd)
		select {
		case <-ended:
			return nil
		case <-time.After(time.Millisecond):
		}
	}
}

func stormKicks(g *guest) error {
	for !g.play.expired() {
		for range 1000 {
			shm.SignalOwn(g.Tx[0].KickFD())
			shm.SignalOwn(g.Rx[0].KickFD())
		}
		g.Tx[0].Send(make([]byte, 64))
		g.flush()
	}
	return nil
}

// dirtyChains offers one receive chain of 1,001 descriptors of 4 GiB each. For a single frame, the
// switch then has to mark terabytes as dirty in the migration log.
func dirtyChains(p *play) error {
	const giant = 8 << 30
	g, err := vhosttest.New(vhosttest.Options{Num: 1024, Features: plainFeatures | vhost.FeatureLogAll})
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.Truncate(giant); err != nil {
		return err
	}
	bitmap, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(bitmap)
	const logSize = 4 << 20
	if err := unix.Ftruncate(bitmap, logSize); err != nil {
		return err
	}
	f, err := vhosttest.Dial(p.socketOf())
	if err != nil {
		return err
	}
	defer f.Close()
	g.Rx[0].Withdraw()
	for i := range g.Rx[0].Descs {
		g.Rx[0].Descs[i] = vhosttest.Desc{Addr: vhosttest.GuestBase, Len: 0xffff_f000, Flags: vhosttest.Write | vhosttest.Next, Next: uint16(i + 1)}
	}
	g.Rx[0].Descs[1000].Flags = vhosttest.Write
	for i := range g.Rx[0].Descs { // 1 GiB above the rings, so that received frames do not overwrite them
		g.Rx[0].Descs[i].Addr = vhosttest.GuestBase + 1<<30
	}
	if err := f.Negotiate(g); err != nil {
		return ignoreClosed(err)
	}
	region := g.Regions()[0]
	region.Size = giant
	if err := ask(f, vhosttest.SetMemTable, table(region), g.FD()); err != nil {
		return ignoreClosed(err)
	}
	if _, err := logBase(f, logSize, bitmap); err != nil {
		return ignoreClosed(err)
	}
	if err := f.StartQueues(g, (*vhosttest.Queue).Start); err != nil {
		return ignoreClosed(err)
	}
	g.Rx[0].Offer(0)
	g.Rx[0].Publish()
	time.Sleep(20 * time.Millisecond)
	g.Tx[0].Send(make([]byte, 64))
	g.Tx[0].Publish()
	time.Sleep(50 * time.Millisecond)
	return nil
}

func ask(f *vhosttest.FrontEnd, request uint32, payload []byte, fds ...int) error {
	_, err := f.Call(request, payload, fds...)
	return err
}

// logBase sends SET_LOG_BASE, and returns the payload of the switch's reply.
func logBase(f *vhosttest.FrontEnd, size uint64, fd int) ([]byte, error) {
	return f.Call(vhosttest.SetLogBase, append(vhosttest.Number(size), vhosttest.Number(0)...), fd)
}

// giantMemory offers eight memory regions that together almost fill a process's address space.
func giantMemory(p *play) error {
	return p.negotiated(func(g *vhosttest.Guest, f *vhosttest.FrontEnd) error {
		const giant, whole, first = 16 << 40, 131_070 << 30, 6 // whole: almost a process's address space
		fd, err := unix.MemfdCreate("giant", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_ = unix.Ftruncate(fd, 4*giant)
		regions, fds := []vhost.RegionSpec{g.Regions()[0]}, []int{g.FD()}
		for i := range uint64(first + 1) {
			size := uint64(giant)
			if i == first { // the last region may or may not fit into the rest of the address space
				size = whole - first*giant - uint64(p.rng.IntN(200))<<30
			}
			regions = append(regions, vhost.RegionSpec{GuestAddr: (i + 1) << 46, UserAddr: (i + 1) << 46, Size: size})
			fds = append(fds, fd)
		}
		if err := f.Send(vhosttest.SetMemTable, vhosttest.Version, table(regions...), fds...); err != nil {
			return ignoreClosed(err)
		}
		if f.StartQueues(g, (*vhosttest.Queue).Start) != nil {
			return nil // no fault: the switch has closed the connection
		}
		time.Sleep(5 * time.Millisecond) // time for the switch to start the device
		return nil
	})
}

// truncateWhileSending fills the transmit ring, and then truncates the guest's memory file while the
// switch reads the frames.
func truncateWhileSending(g *guest) error {
	if err := g.echo(); err != nil {
		return err
	}
	return g.truncateUnder(64)
}

// truncateIntoUplink sends frames of two descriptors to the uplink and truncates the guest's memory
// meanwhile. Usually the memory of the second descriptor is already missing when the switch copies the
// frame. Sometimes the time of the truncation is random.
func truncateIntoUplink(g *guest) error {
	if g.play.rng.IntN(3) == 0 {
		return g.truncateUnder(1400)
	}
	tx := g.Tx[0]
	copy(tx.Slot(0)[12:], ether(nobodysMAC, attackerMAC, 0x88b5, 128))
	if err := g.Truncate(int64(tx.SlotAddr(2)-vhosttest.GuestBase) &^ 4095); err != nil {
		return err
	}
	for i := range tx.Slots() / 2 {
		tx.Descs[2*i] = vhosttest.Desc{Addr: tx.SlotAddr(0), Len: 140, Flags: vhosttest.Next, Next: uint16(2*i + 1)}
		tx.Descs[2*i+1] = vhosttest.Desc{Addr: tx.SlotAddr(tx.Slots() - 1), Len: 1300}
		tx.Offer(uint16(2 * i))
	}
	tx.Publish()
	g.disconnected(100 * time.Millisecond)
	return nil
}

func (g *guest) truncateUnder(size int) error {
	frame := ether([6]byte{2, 0xff, 0, 0, 0, 1}, [6]byte{2, 0xff, 0, 0, 0, 2}, 0x88b5, size)
	for range 60 {
		g.Tx[0].Send(frame)
	}
	g.Tx[0].Publish()
	for range g.play.rng.IntN(20_000) {
	}
	// Usually the part of the memory that has the rings remains, and the worker faults when it reads
	// the frames.
	keep := int64(g.Tx[0].SlotAddr(0) - vhosttest.GuestBase)
	if g.play.rng.IntN(4) == 0 {
		keep = 4096
	}
	return g.Truncate(keep &^ 4095)
}

// punchMemory punches holes into the memory file where the guest's buffers are, again and again. The
// switch then reads zeros. A worker that touches a page of a hole waits for the end of the call. On a
// busy machine, the attacker's thread may lose its core within the call. Then the watchdog replaces the
// engine, and for a while the new engines do not serve the attacker's port.
func punchMemory(p *play) error {
	if n, err := p.hangs(); err != nil || n >= watchdog.HangsForGood {
		time.Sleep(50 * time.Millisecond) // the port stays out
		return err
	}
	g, err := p.guest(p.socketOf(), vhosttest.Options{Num: 64})
	if err != nil {
		return p.unlessHung(err)
	}
	defer g.close()
	if err := g.echo(); err != nil {
		return p.unlessHung(err)
	}
	from := int64(g.Tx[0].SlotAddr(0)-vhosttest.GuestBase) &^ 4095
	size := int64(g.BufLen * g.Tx[0].Slots())
	frame := make([]byte, 1400)
	for !p.expired() {
		for range 16 {
			g.Tx[0].Send(frame)
		}
		g.flush()
		if err := unix.Fallocate(g.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from+4096, size-4096); err != nil {
			return err
		}
	}
	return nil
}

// unlessHung returns err. If the switch has replaced a hung engine since the setup, it returns nil
// instead: the switch then refuses the attacker's port for a while, which is no fault.
func (p *play) unlessHung(err error) error {
	n, showErr := p.hangs()
	if showErr != nil || n == 0 {
		return errors.Join(err, showErr)
	}
	time.Sleep(50 * time.Millisecond)
	return nil
}

// hangs returns how many engines the switch has replaced since the setup of the attack. The setup
// function must come from the function counting.
func (p *play) hangs() (n uint64, err error) {
	if err = p.answered(); err != nil {
		return 0, err
	}
	show, err := p.site.client.Show()
	before, _ := p.vars["restarts"].(uint64)
	return show.Restarts - before, err
}

// punchedBytes limits how much of the machine's memory punchWhole fills. The kernel needs about 300 ms
// to free so much.
const punchedBytes = 4 << 30

// punchWhole punches a hole into the whole file of the guest's memory. The file is much longer than the
// part that the switch maps. The worker polls the guest's rings, and the kernel makes it wait until all
// pages of the hole are free. Meanwhile the watchdog kills the engine, and for a while the new engines
// do not serve the attacker's port.
func punchWhole(p *play) error {
	g, err := p.guest(p.socketOf(), vhosttest.Options{Num: 64})
	if err != nil {
		time.Sleep(50 * time.Millisecond) // no fault: the switch refuses the port for a while
		return nil
	}
	defer g.close()
	for end := time.Now().Add(time.Second); g.drain() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return nil // no fault: the switch refuses the port for a while
		}
		g.send(make([]byte, 64))
		g.Tx[0].Publish()
	}
	size := min(int64(punchedBytes), machineFree()/4)
	if err := unix.Fallocate(g.FD(), 0, 0, size); err != nil {
		return err
	}
	if err := unix.Fallocate(g.FD(), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
		return err
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err = p.site.client.Show(); err == nil {
			break // no engine hangs now
		}
	}
	return err
}

// machineFree returns the bytes of memory that are available on the machine (MemAvailable).
func machineFree() (bytes int64) {
	text, _ := os.ReadFile("/proc/meminfo")
	_, rest, _ := strings.Cut(string(text), "MemAvailable:")
	_, _ = fmt.Sscan(rest, &bytes)
	return bytes << 10
}

// hangsEnd fails if more than watchdog.HangsForGood engines were replaced. After that many hangs, the
// switch no longer serves the attacker's port at all. hangsEnd notes the number of replaced engines.
func hangsEnd(p *play) error {
	n, err := p.hangs()
	if err != nil {
		return err
	}
	p.notes = fmt.Sprintf("%d engines replaced", n)
	if n > watchdog.HangsForGood {
		return fmt.Errorf("%d engines have hung, the port should be out after %d", n, watchdog.HangsForGood)
	}
	return nil
}

// counting returns a setup function that stores how many engines the switch has replaced so far, and
// then calls "setup". The function hangs needs this number.
func counting(setup func(p *play) error) func(p *play) error {
	return func(p *play) error {
		show, err := p.site.client.Show()
		if err != nil {
			return err
		}
		p.vars["restarts"] = show.Restarts
		return setup(p)
	}
}

// lingering passes TCP sockets to the switch as descriptors. If the switch closed one, the close would
// block, because the socket has unsent bytes and its peer does not read.
func lingering(p *play) error {
	return p.negotiated(func(g *vhosttest.Guest, f *vhosttest.FrontEnd) error {
		for range 2 {
			fd, err := lingerer(p)
			if err != nil {
				return err
			}
			err = f.Send(vhosttest.SetBackendReqFD, vhosttest.Version, nil, fd)
			go unix.Close(fd) // may block, if the switch has closed its duplicate already
			if err != nil {
				return ignoreClosed(err)
			}
		}
		return nil
	})
}

// lingerer returns a TCP socket whose close blocks, because it has unsent bytes and the option
// SO_LINGER.
func lingerer(p *play) (int, error) {
	l, ok := p.vars["listener"].(net.Listener)
	if !ok {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return -1, err
		}
		p.vars["listener"] = l
		p.later(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				time.AfterFunc(500*time.Millisecond, func() { // a reset by the peer ends every blocked close after 500 ms
					_ = c.(*net.TCPConn).SetLinger(0)
					c.Close()
				})
			}
		}()
	}
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return -1, err
	}
	defer c.Close()
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		return -1, err
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, err
	}
	_ = unix.SetNonblock(fd, true)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20)
	for range 64 {
		if _, err := unix.Write(fd, make([]byte, 64<<10)); err != nil {
			break
		}
	}
	_ = unix.SetNonblock(fd, false)
	return fd, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 10})
}

// repeatRequest sends a request again and again, and never reads. So the switch's replies fill the
// socket.
func repeatRequest(request uint32) func(p *play) error {
	return func(p *play) error {
		f, err := vhosttest.Dial(p.socketOf())
		if err != nil {
			return err
		}
		defer f.Close()
		_ = f.Conn.SetWriteDeadline(p.until)
		for !p.expired() {
			if err := f.Send(request, vhosttest.Version, nil); err != nil {
				return nil
			}
		}
		return nil
	}
}

const slowPorts = 30

func slowSetup(p *play) error {
	for i := range slowPorts {
		if _, err := p.port(fmt.Sprint("-", i), ""); err != nil {
			return err
		}
	}
	return nil
}

func slowMessages(p *play) error {
	var fronts []*vhosttest.FrontEnd
	defer func() {
		for _, f := range fronts {
			f.Close()
		}
	}()
	for i := range slowPorts {
		f, err := vhosttest.Dial(p.site.socket(fmt.Sprint(p.name, "-", i)))
		if err != nil {
			return err
		}
		fronts = append(fronts, f)
	}
	whole := append([]byte{5, 0, 0, 0, 1, 0, 0, 0, 40, 0, 0, 0}, make([]byte, 40)...)
	for i := 0; i < len(whole)-1 && !p.expired(); i++ { // one byte at a time, but not the last byte
		for _, f := range fronts {
			_, _ = f.Conn.Write(whole[i : i+1])
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func restartRings(p *play) error {
	return attached(vhosttest.Options{}, func(g *guest) error {
		for range 10 {
			for _, q := range []*vhosttest.Queue{g.Rx[0], g.Tx[0]} {
				at, err := g.front.Stop(q)
				if err != nil {
					return err
				}
				if err := g.front.SetVring(q, at); err != nil {
					return err
				}
			}
			g.Tx[0].Send(make([]byte, 64))
			g.flush()
		}
		return nil
	})(p)
}

func resets(p *play) error {
	return attached(vhosttest.Options{}, func(g *guest) error {
		for range 10 {
			g.Tx[0].Send(make([]byte, 64))
			g.flush()
			if err := g.message(vhosttest.ResetDevice, nil); err != nil {
				return err
			}
			if err := g.front.StartQueues(g.Guest, (*vhosttest.Queue).Position); err != nil {
				return err
			}
		}
		return nil
	})(p)
}

func toggleLog(p *play) error {
	return attached(vhosttest.Options{}, func(g *guest) error {
		bitmap, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(bitmap)
		const size = 1 << 20
		if err := unix.Ftruncate(bitmap, size); err != nil {
			return err
		}
		if _, err := logBase(g.front, size, bitmap); err != nil {
			return err
		}
		for i := range 10 {
			features := uint64(plainFeatures | vhost.FeatureProtocolFeatures)
			if i%2 == 0 {
				features |= vhost.FeatureLogAll
			}
			if err := ask(g.front, vhosttest.SetFeatures, vhosttest.Number(features)); err != nil {
				return err
			}
			g.Tx[0].Send(make([]byte, 64))
			g.flush()
		}
		return nil
	})(p)
}

func memoryTables(p *play) error {
	return attached(vhosttest.Options{}, func(g *guest) error {
		for range 10 {
			g.Tx[0].Send(make([]byte, 64))
			g.flush()
			if err := g.front.SetMemory(g.Guest); err != nil {
				return err
			}
		}
		return nil
	})(p)
}

func announcements(p *play) error {
	return attached(vhosttest.Options{}, func(g *guest) error {
		for range 10 {
			if err := g.message(vhosttest.SendRARP, vhosttest.Number(p.rng.Uint64()&^1)); err != nil {
				return err
			}
		}
		return g.echo()
	})(p)
}

// brokenRings corrupts a virtio ring in one of the ways in vhosttest.Attacks and
// vhosttest.TransmitAttacks, at random.
func brokenRings(p *play) error {
	layout := []uint64{0, vhost.FeatureRingPacked}[p.rng.IntN(2)]
	list := append(append([]vhosttest.Attack{}, vhosttest.Attacks...), vhosttest.TransmitAttacks...)
	i := p.rng.IntN(len(list))
	if list[i].Split {
		layout = 0
	}
	return attached(vhosttest.Options{Features: plainFeatures | layout}, func(g *guest) error {
		if err := g.echo(); err != nil {
			return err
		}
		list[i].Do(g.Tx[0])
		if i < len(vhosttest.Attacks) {
			list[i].Do(g.Rx[0])
		}
		g.disconnected(time.Second)
		return nil
	})(p)
}

// inflightLarge attaches a guest with 32 rings. Each ring's in-flight buffer says that 16 of 1,024
// descriptors are in flight.
func inflightLarge(p *play) error {
	g, err := vhosttest.New(vhosttest.Options{Pairs: 16, Num: 1024, BufLen: 256, Features: plainFeatures | vhost.FeatureMultiQueue})
	if err != nil {
		return err
	}
	defer g.Close()
	for _, q := range append(append([]*vhosttest.Queue{}, g.Rx...), g.Tx...) {
		for id := range 1024 {
			if id%64 == 0 {
				if err := g.MarkInflight(q, id, uint64(id)+1); err != nil {
					return err
				}
			}
		}
	}
	f, err := vhosttest.Dial(p.socketOf())
	if err != nil {
		return err
	}
	defer f.Close()
	f.KeepInflight = true
	if err := f.Attach(g); err != nil {
		return ignoreClosed(err)
	}
	time.Sleep(5 * time.Millisecond)
	return nil
}

// symlinks adds ports whose socket paths are symbolic links to files. The switch must not remove these
// files.
func symlinks(p *play) error {
	victim := p.site.socket(p.name + "-file")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		return err
	}
	defer os.Remove(victim)
	for i, target := range []string{p.site.socket("a"), victim, "/nowhere", p.site.lab.Dir} {
		link := p.site.socket(fmt.Sprint(p.name, "-link-", i))
		if err := os.Symlink(target, link); err != nil {
			return err
		}
		name := fmt.Sprint(p.name, "-l", i)
		_, err := p.site.client.AddPort(name, []string{"type=vhost-user", "path=" + link})
		p.site.delPort(name, err)
		os.Remove(link)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		return fmt.Errorf("a file behind a link is %q, %w", text, err)
	}
	if st, err := os.Lstat(p.site.socket("a")); err != nil || st.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("the bystander's socket is gone: %w", err)
	}
	return nil
}
