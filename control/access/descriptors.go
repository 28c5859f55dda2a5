// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"weft/control/limits"
)

// wantDescriptors is the value to which the daemon raises RLIMIT_NOFILE. A vhost-user
// port uses two or three descriptors for each queue and one for each memory region.
const wantDescriptors = 1 << 20

// RaiseDescriptors raises RLIMIT_NOFILE, the limit of open file descriptors, to wantDescriptors. The limit
// applies to this process and to the engine processes that it starts. If the kernel refuses a value,
// because fs.nr_open is lower, RaiseDescriptors tries half of the value. It returns the new limit.
func RaiseDescriptors() (uint64, error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return 0, err
	}
	for want := uint64(wantDescriptors); want > was.Max; want /= 2 { // above fs.nr_open the kernel refuses
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: want, Max: want}) == nil {
			return want, nil
		}
	}
	// The Go runtime starts child processes with the original descriptor limit, unless
	// the program calls Setrlimit.
	return was.Max, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: was.Max, Max: was.Max})
}

// descriptorRows emits the row of `weft show limits` about this process's open file descriptors.
func descriptorRows(emit func(limits.Row)) {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return
	}
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return
	}
	emit(limits.Row{Name: "descriptors", Unit: "descriptors", Holder: limits.All(),
		Used: uint64(len(names)), Limit: limit.Cur})
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// passes reports whether an error of accept(2) is temporary, so that the caller should try again.
func passes(err error) bool {
	return outOfDescriptors(err) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOBUFS) ||
		errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
}

// reserveSize is the number of connections that a listener can accept when the process
// has no free descriptor.
const reserveSize = 8

// Reserve holds spare file descriptors. If the process has no free descriptor, a listener closes a
// spare one so that it can accept a connection.
type Reserve struct {
	mu   sync.Mutex
	want int
	held []*os.File
}

// newReserve opens n spare descriptors, of /dev/null.
func newReserve(n int) *Reserve {
	r := &Reserve{want: n}
	r.refill()
	return r
}

func (r *Reserve) spend() bool {
	if r == nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) == 0 {
		return false
	}
	last := len(r.held) - 1
	r.held[last].Close()
	r.held = r.held[:last]
	return true
}

func (r *Reserve) refill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.held) < r.want {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return
		}
		r.held = append(r.held, f)
	}
}

// Close closes all descriptors of the reserve. It is empty from then on.
func (r *Reserve) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.held {
		f.Close()
	}
	r.held, r.want = nil, 0
}
