package access

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"weft/control/limits"
)

// wantDescriptors is what RLIMIT_NOFILE is raised to. A vhost-user port takes two to
// three descriptors a queue and one a region of memory.
const wantDescriptors = 1 << 20

// RaiseDescriptors raises the limit of this process and of the engines that it starts:
// the hard limit to wantDescriptors or what fs.nr_open allows, if it is lower, and the
// soft limit to the hard one. It returns the limit in force.
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
	// Even if Cur is Max: the Go runtime gives children the limit from before its own
	// raise, unless the program sets one.
	return was.Max, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: was.Max, Max: was.Max})
}

// DescriptorRows is a limits.Source: the descriptors of this process.
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

// passes tells of an error of accept whether the listener works again later.
func passes(err error) bool {
	return outOfDescriptors(err) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.ENOBUFS) ||
		errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN)
}

// ReserveSize is the number of connections to the API that are served when other users
// of descriptors, such as front ends, have taken all.
const ReserveSize = 8

// Reserve keeps descriptors open that can be closed to make room.
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

// spend closes one, if there is one.
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

// refill opens what was spent, as far as there are descriptors.
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

// Close closes all.
func (r *Reserve) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.held {
		f.Close()
	}
	r.held, r.want = nil, 0
}
