// SPDX-License-Identifier: Apache-2.0

package access

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"weft/control/limits"
)

// wantDescriptors is the value to which RLIMIT_NOFILE is raised. A vhost-user port
// uses two or three descriptors for each queue and one for each memory region.
const wantDescriptors = 1 << 20

// RaiseDescriptors raises the descriptor limit of this process and of the engines
// that it starts. It raises the hard limit to wantDescriptors, or to fs.nr_open if
// that is lower, and the soft limit to the hard limit. It returns the limit in force.
func RaiseDescriptors() (uint64, error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return 0, err
	}
	for want := uint64(wantDescriptors); want > was.Max; want /= 2 { // fs.nr_open may be lower
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: want, Max: want}) == nil {
			return want, nil
		}
	}
	// Needed even if Cur is Max: the Go runtime gives child processes the limit from
	// before its own raise, unless the program sets one.
	return was.Max, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: was.Max, Max: was.Max})
}

// DescriptorRows is a limits.Source for the descriptors of this process.
func DescriptorRows(emit func(limits.Row)) {
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

// passes reports whether the listener can accept again after an error of accept.
func passes(err error) bool {
	return outOfDescriptors(err) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOBUFS) ||
		errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
}

// ReserveSize is the number of API connections that are served even if other users of
// descriptors, such as front ends, have used all others.
const ReserveSize = 8

// Reserve keeps descriptors open, and closes them when the process needs some.
type Reserve struct {
	mu   sync.Mutex
	want int
	held []*os.File
}

// NewReserve opens n descriptors.
func NewReserve(n int) *Reserve {
	r := &Reserve{want: n}
	r.refill()
	return r
}

// spend closes one descriptor and reports whether there was one.
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

// refill opens the spent descriptors again, as far as the limit allows.
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

// Close closes all descriptors of the reserve.
func (r *Reserve) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.held {
		f.Close()
	}
	r.held, r.want = nil, 0
}
