// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"net"
	"runtime"
	"syscall"
	"time"

	"weft/internal/cpu"
)

// ovs-ofctl waits for the answer to each flow_mod before it sends the next one. A local peer
// sends the next one within about 10 µs. If a goroutine waits for the message in the runtime's
// poller, each message wakes the process twice: when the message arrives, and when the peer
// reads the answer, because the runtime also polls for room to write.

const (
	// eagerTime is the time for which a reader polls its socket before it waits.
	eagerTime = 30 * time.Microsecond
	// maxEager is the largest number of consecutive messages for which a reader polls. Then it
	// waits in the poller once. The runtime asks for events of other descriptors only when all
	// goroutines wait, so polling delays, for example, the answers to misses.
	maxEager = 8
)

// eagerReader reads from a connection. While messages follow each other quickly, it
// polls the socket for a short time before it waits.
type eagerReader struct {
	net.Conn
	raw   syscall.RawConn // nil: never polls
	quick bool            // the last message for which the reader waited came within 2*eagerTime
	polls int             // number of consecutive messages that polling has found
}

// newEagerReader returns a reader of nc. It polls only connections of a unix socket,
// because the messages of other peers take longer than eagerTime.
func newEagerReader(nc net.Conn) *eagerReader {
	r := &eagerReader{Conn: nc}
	if u, ok := nc.(*net.UnixConn); ok {
		r.raw, _ = u.SyscallConn() // error ignored: without a RawConn, the reader waits
	}
	return r
}

// Read reads from the connection. It polls the socket for at most eagerTime before it waits. It
// implements io.Reader.
func (r *eagerReader) Read(p []byte) (int, error) {
	if r.raw == nil {
		return r.Conn.Read(p)
	}
	began := time.Now()
	if r.quick && r.polls < maxEager {
		for {
			if n := r.try(p); n > 0 {
				r.polls++
				return n, nil
			}
			if time.Since(began) >= eagerTime {
				break
			}
			runtime.Gosched()
			cpu.Yield() // the peer may need this core
		}
	}
	r.polls = 0
	n, err := r.Conn.Read(p)
	r.quick = time.Since(began) < 2*eagerTime
	return n, err
}

// try reads the bytes that have arrived, without waiting. It returns 0 if nothing has arrived,
// or if the connection has ended or failed, which the next Read of the connection reports.
func (r *eagerReader) try(p []byte) (n int) {
	_ = r.raw.Read(func(fd uintptr) bool {
		n, _ = syscall.Read(int(fd), p)
		return true
	})
	return max(n, 0)
}
