// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"weft/conntrack"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/shm"
)

// Memory is the memory that the control process and the engine process share: a region and an eventfd for
// each worker, an eventfd for the control process, and the connection table. The control process makes it,
// and both processes map it.
type Memory struct {
	Regions []*shm.Region
	// Shared has the tables and rings in the workers' regions; index: worker.
	Shared []*datapath.Shared
	// CommandEvents wake the workers; index: worker. UpcallEvent wakes the control process.
	CommandEvents []int
	UpcallEvent   int
	// OptionsKey is the key for hashes of Geneve options, from the configuration Start.
	OptionsKey flowtable.OptionsKey
	// Connections is the connection table. It is in a region of its own, so that the next engine can use it
	// again.
	Connections conntrack.Memory
	table       *shm.Region
	// unmapped has the descriptors of regions that this process does not map: see OpenTable.
	unmapped []int
}

// NewOptionsKey returns a random key for hashes of Geneve options.
func NewOptionsKey() (k flowtable.OptionsKey) {
	var b [16]byte
	rand.Read(b[:]) // never fails
	k[0], k[1] = binary.NativeEndian.Uint64(b[:]), binary.NativeEndian.Uint64(b[8:])
	return k
}

// regionSize returns the size of one worker's region in bytes.
func regionSize(s datapath.Sizes) int {
	var l shm.Layout
	datapath.CarveShared(&l, s)
	return l.Off
}

// NewMemory makes the memory for configuration s. oldMemory is that of the previous engine; nil: none. If
// the connection table of oldMemory has the right size, the new memory has the same table. Otherwise it has
// a new table with a copy of the connections, or an empty table without oldMemory. The caller still owns
// oldMemory.
func NewMemory(s Start, oldMemory *Memory) (*Memory, error) {
	m := &Memory{UpcallEvent: -1, OptionsKey: s.OptionsKey}
	var err error
	if err = m.makeTable(s, oldMemory); err != nil {
		return nil, fmt.Errorf("engine: connection table: %w", err)
	}
	if m.UpcallEvent, err = shm.NewEvent(); err != nil {
		m.Close()
		return nil, fmt.Errorf("engine: eventfd: %w", err)
	}
	for i := range s.Cores {
		r, err := shm.Create(fmt.Sprintf("worker-%d", i), regionSize(s.Sizes))
		if err != nil {
			m.Close()
			return nil, fmt.Errorf("engine: %w", err)
		}
		m.add(r, s.Sizes)
		fd, err := shm.NewEvent()
		if err != nil {
			m.Close()
			return nil, fmt.Errorf("engine: eventfd: %w", err)
		}
		m.CommandEvents = append(m.CommandEvents, fd)
	}
	return m, nil
}

// OpenMemory maps the memory whose descriptors came with an OpStart for configuration s. It owns the
// descriptors, even if it fails.
func OpenMemory(s Start, fds []int) (*Memory, error) {
	workers := len(s.Cores)
	if len(fds) != 2*workers+2 {
		closeAll(fds)
		return nil, fmt.Errorf("%d descriptors for %d workers: expected %d", len(fds), workers, 2*workers+2)
	}
	m := &Memory{CommandEvents: append([]int(nil), fds[workers:2*workers]...), UpcallEvent: fds[2*workers], OptionsKey: s.OptionsKey}
	if err := m.openTable(s, fds[2*workers+1]); err != nil {
		closeAll(fds[:workers])
		m.Close()
		return nil, fmt.Errorf("connection table: %w", err)
	}
	for i, fd := range fds[:workers] {
		r, err := shm.Open(fd)
		if err == nil && len(r.Bytes()) < regionSize(s.Sizes) {
			err = fmt.Errorf("region of %d bytes: expected at least %d", len(r.Bytes()), regionSize(s.Sizes))
			r.Close()
		}
		if err != nil {
			closeAll(fds[i+1 : workers])
			m.Close()
			return nil, fmt.Errorf("worker %d: %w", i, err)
		}
		m.add(r, s.Sizes)
	}
	return m, nil
}

// OpenTable maps only the connection table of the memory whose descriptors came with an OpStart for
// configuration s. The engine that got this OpStart may be of another build; OpenTable fails if that
// build's table has another layout. OpenTable owns the descriptors, even if it fails. The descriptors of
// the other regions stay open until Close. Without them, the end of that engine would free the pages of
// these regions, while guests wait.
func OpenTable(s Start, fds []int) (*Memory, error) {
	last := 2*len(s.Cores) + 1
	if len(fds) != last+1 {
		closeAll(fds)
		return nil, fmt.Errorf("%d descriptors for %d workers: expected %d", len(fds), len(s.Cores), last+1)
	}
	m := &Memory{UpcallEvent: -1, unmapped: fds[:last]}
	if err := m.openTable(s, fds[last]); err != nil {
		m.Close()
		return nil, fmt.Errorf("connection table: %w", err)
	}
	if !m.Connections.Known() {
		m.Close()
		return nil, fmt.Errorf("connection table: another layout")
	}
	return m, nil
}

func (m *Memory) add(r *shm.Region, s datapath.Sizes) {
	m.Regions = append(m.Regions, r)
	m.Shared = append(m.Shared, datapath.CarveShared(&shm.Layout{Mem: r.Bytes()}, s))
}

// tableSizes returns the sizes of the connection table, with the default for a size of 0.
func tableSizes(s Start) conntrack.Sizes {
	if s.Connections.Connections == 0 {
		s.Connections.Connections = conntrack.DefaultConnections
	}
	return s.Connections
}

func tableBytes(s conntrack.Sizes) int {
	var l shm.Layout
	conntrack.CarveMemory(&l, s)
	return l.Off
}

// makeTable makes the connection table. If the table of oldMemory has the right size, it maps that
// table. Otherwise the setting has changed, and makeTable copies the connections. Connections that the
// previous engine makes after the copy are lost.
func (m *Memory) makeTable(s Start, oldMemory *Memory) error {
	sizes := tableSizes(s)
	if !sizes.Valid() {
		return fmt.Errorf("%d connections: expected a number from %d to %d", sizes.Connections, conntrack.LeastConnections, conntrack.MaxConnections)
	}
	if oldMemory != nil && oldMemory.table != nil && oldMemory.Connections.Capacity() == sizes.Records() {
		fd, err := unix.FcntlInt(uintptr(oldMemory.table.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := m.openTable(s, fd); err != nil {
			return err
		}
		m.Connections.SetRoom(sizes)
		return nil
	}
	r, err := shm.Create("connections", tableBytes(sizes))
	if err != nil {
		return err
	}
	m.setTable(r, sizes)
	var seed [8]byte
	rand.Read(seed[:]) // rand.Read never fails
	conntrack.Init(m.Connections, binary.LittleEndian.Uint64(seed[:]))
	m.Connections.SetRoom(sizes)
	if oldMemory != nil && oldMemory.table != nil {
		m.Connections.Copy(&oldMemory.Connections)
	}
	return nil
}

// openTable maps the connection table behind fd. It owns fd.
func (m *Memory) openTable(s Start, fd int) error {
	sizes := tableSizes(s)
	r, err := shm.Open(fd)
	if err != nil {
		return err
	}
	if !sizes.Valid() || len(r.Bytes()) < tableBytes(sizes) {
		size := len(r.Bytes())
		r.Close()
		return fmt.Errorf("region of %d bytes is too small for %d connections", size, sizes.Connections)
	}
	m.setTable(r, sizes)
	return nil
}

func (m *Memory) setTable(r *shm.Region, sizes conntrack.Sizes) {
	m.table = r
	m.Connections = conntrack.CarveMemory(&shm.Layout{Mem: r.Bytes()}, sizes)
}

// FDs returns the descriptors of the memory in the order in which an OpStart has them. m still owns
// them.
func (m *Memory) FDs() []int {
	var fds []int
	for _, r := range m.Regions {
		fds = append(fds, r.FD())
	}
	return append(append(fds, m.CommandEvents...), m.UpcallEvent, m.table.FD())
}

// Close unmaps the regions and closes all descriptors. The caller must not use Shared
// or Connections afterwards.
func (m *Memory) Close() {
	for _, r := range m.Regions {
		r.Close()
	}
	if m.table != nil {
		m.table.Close()
	}
	closeAll(m.CommandEvents)
	closeAll(m.unmapped)
	if m.UpcallEvent >= 0 {
		closeAll([]int{m.UpcallEvent})
	}
	*m = Memory{UpcallEvent: -1}
}
