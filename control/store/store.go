// Package store is the state on disk: ports, flows, groups, meters and settings of
// tables that were made through the API, and the connections between a stop and the
// next start.
//
// It owns the state directory, by a lock file, and the state file in it. Its lock is
// the file's own: one transaction writes at a time, and waits for the disk. Callers
// are the start of the daemon, the changes of ports and those of the pipeline; they
// hold the change lock and no lock that a frame waits for.
package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	boltErrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"weft/control/usererr"
	"weft/internal/safepath"
)

// layoutVersion is the version of the state file's layout; another is refused.
const layoutVersion = 1

var (
	bucketMeta   = []byte("meta")
	bucketPorts  = []byte("ports")  // port number, 32 bits big endian -> Port in JSON
	bucketNames  = []byte("names")  // port number, 32 bits big endian -> name of its last port
	bucketGroups = []byte("groups") // group number, 32 bits big endian -> group text
	bucketMeters = []byte("meters") // meter number, the same
	bucketFlows  = []byte("flows")  // counter slot, 32 bits big endian -> age 64 bits, flow text
	bucketTables = []byte("tables") // flow table, the same -> settings
	keyVersion   = []byte("version")
)

// Port is a port as it was asked for.
type Port struct {
	Number  uint32   `json:"number"`
	Name    string   `json:"name"`
	Options []string `json:"options"`
}

// Flow is a flow as text. Slot is its place in the counter region, Age
// grows with every flow added: the order in which they are added again.
type Flow struct {
	Slot uint32
	Age  uint64
	Text string
}

// Store is an open state directory. Every change of its file is one transaction, on
// the disk before the method returns.
type Store struct {
	dir  *os.Root
	db   *bbolt.DB
	lock *os.File // flock of the state directory
}

// Open locks the state directory, making it if need be, and opens its
// state file. The error is one line for the operator.
func Open(dir string) (*Store, error) {
	root, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w; run as root, or give another with --state", dir, usererr.Cause(err))
	}
	lock, err := lockDir(root, dir)
	if err != nil {
		root.Close()
		return nil, err
	}
	path := filepath.Join(dir, "state.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, InitialMmapSize: stateMapBytes,
		OpenFile: func(_ string, flags int, mode os.FileMode) (*os.File, error) {
			return root.OpenFile("state.db", flags|unix.O_NOFOLLOW, mode)
		}})
	if err != nil {
		lock.Close()
		root.Close()
		err = fmt.Errorf("state file %s: %w", path, usererr.Cause(err))
		if errors.Is(err, boltErrors.ErrInvalid) || errors.Is(err, boltErrors.ErrVersionMismatch) || errors.Is(err, boltErrors.ErrChecksum) {
			err = fmt.Errorf("%w; restore it, or move it away to begin without ports and flows", err)
		}
		return nil, err
	}
	s := &Store{dir: root, db: db, lock: lock}
	if err := s.prepare(); err != nil {
		s.Close()
		return nil, fmt.Errorf("state file %s: %w", path, err)
	}
	return s, nil
}

// openDir opens the state directory, which nobody else may change: what is in it is
// believed. The root stays with the directory if its path leads elsewhere later.
func openDir(dir string) (*os.Root, error) {
	f, err := safepath.Private(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// stateMapBytes is how much of the state file is mapped at once. When it grows
// beyond that in the middle of a transaction, all that was written so far in it
// is copied once more.
const stateMapBytes = 1 << 30

// lockPatience is how long a daemon that was just killed may take to be gone.
const lockPatience = time.Second

// lockDir takes the directory for this process alone; the kernel gives it back
// when the process ends, however it ends.
func lockDir(root *os.Root, dir string) (*os.File, error) {
	f, err := root.OpenFile("lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w; run as root, or give another with --state", dir, usererr.Cause(err))
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	for began := time.Now(); err != nil && time.Since(began) < lockPatience; {
		time.Sleep(10 * time.Millisecond)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		owner := make([]byte, 16)
		n, _ := f.ReadAt(owner, 0)
		f.Close()
		return nil, fmt.Errorf("state directory %s: in use by weftd with pid %s; stop it, or give another with --state",
			dir, strings.TrimSpace(string(owner[:n])))
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(fmt.Sprintln(os.Getpid())), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("state directory %s: %w", dir, usererr.Cause(err))
	}
	return f, nil
}

func (s *Store) prepare() error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketPorts, bucketNames, bucketFlows, bucketGroups, bucketMeters, bucketTables} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		have := meta.Get(keyVersion)
		if have == nil {
			return meta.Put(keyVersion, number(layoutVersion))
		}
		if v := binary.BigEndian.Uint32(have); v != layoutVersion {
			return fmt.Errorf("layout version %d, expected %d", v, layoutVersion)
		}
		return nil
	})
}

func (s *Store) Close() error {
	err := s.db.Close()
	s.lock.Close()
	s.dir.Close()
	return err
}

func number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// SavePort adds the port, and remembers whose its number is.
func (s *Store) SavePort(p Port) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		if err := tx.Bucket(bucketNames).Put(number(p.Number), []byte(p.Name)); err != nil {
			return err
		}
		return tx.Bucket(bucketPorts).Put(number(p.Number), text)
	})
}

func (s *Store) DeletePort(no uint32) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketPorts).Delete(number(no)) })
}

// ChangeFlows deletes and saves flows, both by rising slot, in one transaction:
// in another order a large change takes time that grows with its square.
func (s *Store) ChangeFlows(save iter.Seq[Flow], remove []uint32) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		flows := tx.Bucket(bucketFlows)
		if err := deleteFlows(flows, remove); err != nil {
			return err
		}
		if save == nil {
			return nil
		}
		for f := range save {
			value := make([]byte, 0, 8+len(f.Text))
			value = append(binary.BigEndian.AppendUint64(value, f.Age), f.Text...)
			if err := flows.Put(number(f.Slot), value); err != nil {
				return err
			}
		}
		return nil
	})
}

func deleteFlows(flows *bbolt.Bucket, remove []uint32) error {
	for _, slot := range slices.Sorted(slices.Values(remove)) {
		if err := flows.Delete(number(slot)); err != nil {
			return err
		}
	}
	return nil
}

// ChangeTables saves what groups and meters there are now, by number, and
// deletes flows, in one transaction.
func (s *Store) ChangeTables(groups, meters map[uint32]string, remove []uint32) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		if err := deleteFlows(tx.Bucket(bucketFlows), remove); err != nil {
			return err
		}
		if err := replaceBucket(tx, bucketGroups, groups); err != nil {
			return err
		}
		return replaceBucket(tx, bucketMeters, meters)
	})
}

// SaveTableConfigs saves the settings of flow tables, by number.
func (s *Store) SaveTableConfigs(texts map[uint32]string) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return replaceBucket(tx, bucketTables, texts) })
}

func replaceBucket(tx *bbolt.Tx, name []byte, rows map[uint32]string) error {
	if err := tx.DeleteBucket(name); err != nil {
		return err
	}
	b, err := tx.CreateBucket(name)
	if err != nil {
		return err
	}
	for n, text := range rows {
		if err := b.Put(number(n), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// State is all that a state file holds: ports by number, flows by age.
type State struct {
	Ports  []Port
	Flows  []Flow
	Groups []string
	Meters []string
	Tables map[uint32]string // settings
	Names  map[uint32]string // of the last port with each number, deleted ones too
}

func (s *Store) Load() (State, error) {
	l := State{Names: map[uint32]string{}}
	err := s.db.View(func(tx *bbolt.Tx) error {
		err := tx.Bucket(bucketNames).ForEach(func(k, v []byte) error {
			l.Names[binary.BigEndian.Uint32(k)] = string(v)
			return nil
		})
		if err != nil {
			return err
		}
		err = tx.Bucket(bucketPorts).ForEach(func(k, v []byte) error {
			var p Port
			if err := json.Unmarshal(v, &p); err != nil {
				return fmt.Errorf("port %d: %w", binary.BigEndian.Uint32(k), err)
			}
			l.Ports = append(l.Ports, p)
			return nil
		})
		if err != nil {
			return err
		}
		err = tx.Bucket(bucketTables).ForEach(func(k, v []byte) error {
			if l.Tables == nil {
				l.Tables = map[uint32]string{}
			}
			l.Tables[binary.BigEndian.Uint32(k)] = string(v)
			return nil
		})
		if err != nil {
			return err
		}
		for _, table := range []struct {
			bucket []byte
			into   *[]string
		}{{bucketGroups, &l.Groups}, {bucketMeters, &l.Meters}} {
			err := tx.Bucket(table.bucket).ForEach(func(_, v []byte) error {
				*table.into = append(*table.into, string(v))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return tx.Bucket(bucketFlows).ForEach(func(k, v []byte) error {
			if len(k) != 4 || len(v) < 8 {
				return fmt.Errorf("flow entry of %d and %d bytes", len(k), len(v))
			}
			l.Flows = append(l.Flows, Flow{
				Slot: binary.BigEndian.Uint32(k), Age: binary.BigEndian.Uint64(v), Text: string(v[8:]),
			})
			return nil
		})
	})
	sort.Slice(l.Flows, func(i, j int) bool { return l.Flows[i].Age < l.Flows[j].Age })
	return l, err
}
