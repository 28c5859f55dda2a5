// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weft/control/engines/enginetest"
	"weft/control/ports"
	"weft/engine"
	"weft/internal/testnet"
)

// record is a line of a recorded hand-over. It has a request that an engine of an earlier version
// keeps, and the kinds of its descriptors. The recorded engine had the vhost-user ports vm1 and vm2
// with running guests, and the tap t3. Its control process had been killed.
type record struct {
	Request engine.Request `json:"request"`
	FDs     []struct {
		Kind string `json:"kind"` // target of the link in /proc/self/fd
		Size int64  `json:"size"`
	} `json:"fds"`
}

func readRecords(t *testing.T, file string) (records []record) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	return records
}

// kept opens descriptors of the recorded kinds. The other ends of sockets stay open.
func (r *record) kept(t *testing.T) engine.Kept {
	t.Helper()
	k := engine.Kept{Request: r.Request}
	for i, about := range r.FDs {
		fd, err := -1, error(nil)
		switch {
		case strings.HasPrefix(about.Kind, "/memfd:"):
			if fd, err = unix.MemfdCreate("recorded", unix.MFD_CLOEXEC); err == nil {
				err = unix.Ftruncate(fd, about.Size)
			}
		case about.Kind == "anon_inode:[eventfd]":
			fd, err = unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		case about.Kind == "socket" && i == len(r.FDs)-1:
			fd, err = listen(t)
		case about.Kind == "socket":
			var pair [2]int
			pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			fd = pair[0]
			t.Cleanup(func() { unix.Close(pair[1]) })
		default:
			fd, err = unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		k.FDs = append(k.FDs, fd)
	}
	return k
}

func listen(t *testing.T) (int, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s")})
	if err != nil {
		return -1, err
	}
	defer l.Close()
	f, err := l.File()
	if err != nil {
		return -1, err
	}
	defer f.Close()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
}

// Control understands the requests that an engine of an earlier version keeps. The new engine gets the
// same devices, and guests need not connect again. Each file is a recording of an engine of the
// version in its name.
func TestEngineOfEarlierVersion(t *testing.T) {
	for _, version := range []string{"0.1", "0.2-545dbf76"} {
		t.Run(version, func(t *testing.T) {
			space := testnet.New(t)
			r := newRig(t)
			for i, name := range []string{"vm1", "vm2"} {
				if _, err := r.ports.Add(name, []string{"type=vhost-user", "mode=server", "path=" + filepath.Join(r.dir, fmt.Sprint("socket", i))}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := r.ports.Add("t3", []string{"type=tap", "netns=" + space.Name}); err != nil {
				t.Fatal(err)
			}
			records := readRecords(t, filepath.Join("testdata", "handover-"+version+".jsonl"))
			r.die()
			old := enginetest.NewRecorded(func() (kept []engine.Kept) {
				for i := range records {
					kept = append(kept, records[i].kept(t))
				}
				return kept
			})
			r.launcher.leftover = old
			r.begin()
			next := r.launcher.last()
			if !old.HasEnded() || next.HasEnded() {
				t.Fatal("the engine was not replaced")
			}
			attached := 0
			for _, record := range records {
				if want := record.Request.Attach; want != nil {
					attached++
					sameDevice(t, want, next.Attached(want.Port))
				}
			}
			if attached != 3 {
				t.Errorf("%d devices were recorded, want 3", attached)
			}
		})
	}
}

// A device may have further descriptors, which earlier versions do not know. They follow the others.
// If there is no device for them, they are closed.
func TestFurtherDescriptors(t *testing.T) {
	r := newRig(t)
	r.die()
	device := func() int {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	first, extra, orphan := device(), device(), device()
	r.launcher.leftover = enginetest.NewRecorded(func() []engine.Kept {
		keep := func(key string, fd int) engine.Kept {
			return engine.Kept{Request: engine.Request{Op: engine.OpKeep, Key: key}, FDs: []int{fd}}
		}
		return []engine.Kept{keep(ports.ExtrasKey(7), extra), keep(ports.ExtrasKey(8), orphan), keep(ports.KeepKey(7), first)}
	})
	in, err := r.engines.inherit()
	if err != nil {
		t.Fatal(err)
	}
	if k := in.ports[7]; len(in.ports) != 1 || k == nil || !slices.Equal(k.FDs, []int{first, extra}) {
		t.Errorf("devices %v, want port 7 with descriptors %d and %d", in.ports, first, extra)
	}
	if _, err := unix.FcntlInt(uintptr(orphan), unix.F_GETFD, 0); err == nil {
		t.Error("the descriptor of a missing device is open")
	}
	in.ports[7].CloseFDs()
	r.launcher.leftover = nil
	r.begin()
}

// sameDevice checks that a device was attached with everything that its record has.
func sameDevice(t *testing.T, want, got *engine.Attach) {
	t.Helper()
	if got == nil || got.Kind != want.Kind || got.Name != want.Name {
		t.Errorf("port %s: attached %+v", want.Name, got)
		return
	}
	var was, is map[string]any
	if err := json.Unmarshal(want.Spec, &was); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(got.Spec, &is); err != nil {
		t.Fatal(err)
	}
	for key, value := range was {
		if !reflect.DeepEqual(is[key], value) {
			t.Errorf("port %s: %s is %v, was %v", want.Name, key, is[key], value)
		}
	}
}
