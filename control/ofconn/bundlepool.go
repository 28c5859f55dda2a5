// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"weft/control/limits"
	"weft/openflow/ofp"
)

// BundlePool limits and counts the memory for the messages of OpenFlow bundles, for all bridges
// together. The messages are in memory outside of Go's heap, because the heap grows to twice its
// live bytes before a garbage collection. On the heap, bundles of 256 MiB would make the control
// process 600 MiB larger.
type BundlePool struct {
	decoding   turn
	committing sync.Mutex // one commit of a bundle at a time; taken before the locks of the switch

	mu      sync.Mutex // guards the fields below; no lock is taken under it
	limit   int64
	used    int64
	holders map[string]int64 // bytes by Conn.holder
	refused uint64           // number of messages refused at a limit of bundles
	expired uint64           // number of bundles discarded because no message came
}

// maxAllBundleBytes limits the memory of the bundles of all bridges. The bundles of one peer may
// have at most as many bytes as are free. So a peer gets half of the memory if no other peer has
// bundles.
const maxAllBundleBytes = 256 << 20

// NewBundlePool returns an empty pool with the limit maxAllBundleBytes.
func NewBundlePool() *BundlePool {
	return &BundlePool{limit: maxAllBundleBytes, holders: map[string]int64{}}
}

// reserve adds n bytes to the bytes that a peer uses; a negative n gives bytes back. It returns
// false, and adds none, if the peer would then use more bytes than are free.
func (p *BundlePool) reserve(holder string, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 && p.holders[holder]+n > p.limit-p.used-n {
		return false
	}
	p.used += n
	if p.holders[holder] += n; p.holders[holder] == 0 {
		delete(p.holders, holder)
	}
	return true
}

func (p *BundlePool) countRefused() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused++
}

func (p *BundlePool) countExpired() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expired++
}

// LimitRows reports the pool's use and limits for "weft show limits". It is a limits.Source.
func (p *BundlePool) LimitRows(emit func(limits.Row)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	emit(limits.Row{Name: "openflow_bundles", Unit: "bytes", Holder: limits.All(), Used: uint64(p.used), Limit: uint64(p.limit),
		Refused: p.refused, Evicted: p.expired})
	for holder, used := range p.holders {
		emit(limits.Row{Name: "openflow_bundles", Unit: "bytes", Holder: limits.Peer(holder), Used: uint64(used), Limit: uint64(used + (p.limit-p.used-used)/2)})
	}
}

// bundleBlock is the unit in bytes in which bundles get memory. A message may begin in one
// block and end in the next one.
const bundleBlock = 64 << 10

// messageStore has OpenFlow messages one after the other, in blocks of memory outside of Go's
// heap. Its zero value is empty.
type messageStore struct {
	blocks [][]byte
	length int // bytes of all messages
}

// blocksFor returns the number of further blocks that the store needs to hold another n bytes.
func (s *messageStore) blocksFor(n int) int {
	return (s.length+n+bundleBlock-1)/bundleBlock - len(s.blocks)
}

// add copies a message to the end of the store.
func (s *messageStore) add(m []byte) error {
	for range s.blocksFor(len(m)) {
		block, err := unix.Mmap(-1, 0, bundleBlock, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			return err
		}
		s.blocks = append(s.blocks, block)
	}
	for len(m) > 0 {
		n := copy(s.blocks[s.length/bundleBlock][s.length%bundleBlock:], m)
		s.length, m = s.length+n, m[n:]
	}
	return nil
}

// read appends n bytes of the store to b, beginning at the offset.
func (s *messageStore) read(b []byte, offset, n int) []byte {
	for n > 0 {
		part := s.blocks[offset/bundleBlock][offset%bundleBlock:]
		part = part[:min(n, len(part))]
		b, offset, n = append(b, part...), offset+len(part), n-len(part)
	}
	return b
}

// next appends the message at the offset to b. "end" is the offset of the message after it.
func (s *messageStore) next(b []byte, offset int) (message []byte, end int) {
	var header [ofp.HeaderLen]byte
	n := int(binary.BigEndian.Uint16(s.read(header[:0], offset, len(header))[2:]))
	return s.read(b, offset, n), offset + n
}

// free returns the memory to the kernel.
func (s *messageStore) free() {
	for _, b := range s.blocks {
		_ = unix.Munmap(b) // fails only for an address that is no mapping
	}
	*s = messageStore{}
}

// turn is a mutex that lets one connection at a time decode the messages of bundles. Without it, the
// connections of a peer that keeps sending bundles use all CPU time: the Go runtime lets each of 100
// goroutines compute for 10 ms before it polls the sockets of the others. It then took 10 s to
// attach a port.
type turn struct {
	mu      sync.Mutex
	waiting atomic.Int32
	spent   time.Duration // decoding time since the last pause; guarded by mu
}

const (
	// turnTime is the decoding time after which the goroutine that holds the mutex pauses, if other
	// connections wait for it.
	turnTime = 2 * time.Millisecond
	// turnRest is the length of this pause. The Go runtime polls the sockets of other goroutines in
	// it.
	turnRest = time.Millisecond
)

// do calls f while no other connection decodes.
func (t *turn) do(f func()) {
	t.waiting.Add(1)
	t.mu.Lock()
	defer t.mu.Unlock()
	others := t.waiting.Add(-1) > 0
	began := time.Now()
	f()
	if t.spent += time.Since(began); t.spent >= turnTime {
		t.spent = 0
		if others {
			time.Sleep(turnRest)
		}
	}
}
