// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"weft/internal/shm"
	"weft/packet"
)

// countedQueue is a receive queue whose frames the kernel counts (count.go). It sees without a system call
// whether frames wait. If the count shows waiting frames, it reads no more frames than that. A worker owns
// it.
type countedQueue struct {
	rxQueue
	mem    []byte         // mapped counts of all queues
	queued *atomic.Uint64 // number of frames that the kernel has counted; the kernel writes it
	taken  uint64         // number of counted frames that Recv has returned or given up
	// tries is the number of consecutive reads that have found no frame although a counted frame was
	// missing. missing is the smallest number of missing frames at these reads.
	tries   int
	missing uint64
}

// maxTries is the number of reads that look for a missing frame, which the kernel has counted but not queued.
// The kernel queues a frame less than a microsecond after it has counted it. After maxTries reads, the queue
// assumes that the kernel has dropped the frames that were missing at each of them. If a frame was only late,
// because the hypervisor had stopped the sender's processor, the worker finds it when it asks epoll.
const maxTries = 8

func newCountedRx(fd int, s spec, counts, number int) (*countedQueue, error) {
	rx, err := newRx(fd, s)
	if err != nil {
		return nil, err
	}
	q := &countedQueue{rxQueue: *rx}
	size := (s.Queues*countStride + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	if q.mem, err = unix.Mmap(counts, 0, size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		rx.Close()
		return nil, fmt.Errorf("map the counts of frames: %w", err)
	}
	q.queued = &shm.View[atomic.Uint64](q.mem, number*countStride, 1)[0]
	q.taken = q.queued.Load() // the worker calls the first Recv even if Waits returns false
	return q, nil
}

// waiting returns the number of counted frames that Recv has neither returned nor given up. It is negative if
// Recv has returned frames that the kernel did not count.
func (q *countedQueue) waiting() int64 { return int64(q.queued.Load() - q.taken) }

// Waits implements port.Counted. It returns true if the count of the kernel differs from the number of frames
// that Recv has returned, even if frames that were not counted are the cause.
func (q *countedQueue) Waits() bool { return q.waiting() != 0 }

// Recv reads as many frames as the kernel has counted, one per system call, until the batch is full.
// If the count shows no frame, Recv reads until the kernel has none, because some frames are not
// counted.
func (q *countedQueue) Recv(b *packet.Batch) int {
	if q.Broken != "" {
		return -1
	}
	limit, count := packet.BatchSize, q.queued.Load()
	if n := int64(count - q.taken); n > 0 {
		limit = int(min(n, packet.BatchSize))
	}
	n, empty := q.recv(b, limit)
	q.taken += uint64(max(n, 0))
	if int64(count-q.taken) <= 0 {
		q.tries = 0
	}
	if empty {
		q.settle(count)
	}
	return n
}

// settle corrects q.taken, the number of returned frames, after a read that has found no frame. count is the
// number of frames that the kernel had counted before the read.
func (q *countedQueue) settle(count uint64) {
	missing := int64(count - q.taken)
	if missing <= 0 {
		if now := q.queued.Load(); int64(now-q.taken) < 0 { // Recv has returned frames that the kernel does not count
			q.taken = now
		}
		return
	}
	if q.tries == 0 || uint64(missing) < q.missing {
		q.missing = uint64(missing)
	}
	if q.tries++; q.tries >= maxTries {
		q.taken += q.missing
		q.tries = 0
	}
}

// Close unmaps the queue's memory. Every later Recv fails.
func (q *countedQueue) Close() {
	if q.mem != nil {
		_ = unix.Munmap(q.mem)
		q.mem = nil
	}
	q.rxQueue.Close()
}
