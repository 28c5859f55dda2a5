package engine

import (
	"fmt"

	"weft/datapath"
	"weft/internal/shm"
)

// Memory is what the two processes share: a region and a command eventfd a
// worker, and one upcall eventfd that wakes control. Control makes it, both map
// it; each side closes its own.
type Memory struct {
	Regions []*shm.Region
	// Shared are the workers' regions, laid out. Index: worker.
	Shared []*datapath.Shared
	// CommandEvents wake the workers, UpcallEvent control.
	CommandEvents []int
	UpcallEvent   int
}

// regionSize is the size of one worker's region in bytes.
func regionSize(s datapath.Sizes) int {
	var l shm.Layout
	datapath.CarveShared(&l, s)
	return l.Off
}

// NewMemory makes empty memory for the workers of s.
func NewMemory(s Start) (*Memory, error) {
	m := &Memory{UpcallEvent: -1}
	var err error
	if m.UpcallEvent, err = shm.NewEvent(); err != nil {
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

// OpenMemory maps memory that was made for s, from the descriptors of an
// OpStart, which it owns from then on, also when it fails.
func OpenMemory(s Start, fds []int) (*Memory, error) {
	workers := len(s.Cores)
	if len(fds) != 2*workers+1 {
		closeAll(fds)
		return nil, fmt.Errorf("%d descriptors for %d workers, expected %d", len(fds), workers, 2*workers+1)
	}
	m := &Memory{CommandEvents: append([]int(nil), fds[workers:2*workers]...), UpcallEvent: fds[2*workers]}
	for i, fd := range fds[:workers] {
		r, err := shm.Open(fd)
		if err == nil && len(r.Bytes()) < regionSize(s.Sizes) {
			err = fmt.Errorf("region of %d bytes, %d needed", len(r.Bytes()), regionSize(s.Sizes))
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

func (m *Memory) add(r *shm.Region, s datapath.Sizes) {
	m.Regions = append(m.Regions, r)
	m.Shared = append(m.Shared, datapath.CarveShared(&shm.Layout{Mem: r.Bytes()}, s))
}

// FDs are the descriptors in the order of OpStart. They stay m's.
func (m *Memory) FDs() []int {
	var fds []int
	for _, r := range m.Regions {
		fds = append(fds, r.FD())
	}
	return append(append(fds, m.CommandEvents...), m.UpcallEvent)
}

// Close unmaps the regions and closes all descriptors. Nothing of Shared may be
// used any more.
func (m *Memory) Close() {
	for _, r := range m.Regions {
		r.Close()
	}
	closeAll(m.CommandEvents)
	if m.UpcallEvent >= 0 {
		closeAll([]int{m.UpcallEvent})
	}
	*m = Memory{UpcallEvent: -1}
}
