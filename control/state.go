package control

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
)

// stateVersion is that of the layout of the state file; another is refused.
const stateVersion = 1

var (
	bucketMeta   = []byte("meta")
	bucketPorts  = []byte("ports")  // port number, 32 bits big endian -> savedPort in JSON
	bucketNames  = []byte("names")  // port number, 32 bits big endian -> name of its last port
	bucketGroups = []byte("groups") // group number, 32 bits big endian -> group text
	bucketMeters = []byte("meters") // meter number, the same
	bucketFlows  = []byte("flows")  // counter slot, 32 bits big endian -> age 64 bits, flow text
	bucketTables = []byte("tables") // flow table, the same -> settings
	keyVersion   = []byte("version")
)

// savedPort is a port as it was asked for.
type savedPort struct {
	Number  uint32   `json:"number"`
	Name    string   `json:"name"`
	Options []string `json:"options"`
}

// savedFlow is a flow as text. Slot is its place in the counter region, Age
// grows with every flow added: the order in which they are added again.
type savedFlow struct {
	Slot uint32
	Age  uint64
	Text string
}

// store is the state file: what was made through the client and must survive a
// restart. Every change is one transaction, on the disk before it returns.
type store struct {
	db   *bbolt.DB
	lock *os.File // flock of the state directory
}

// openStore locks the state directory, making it if need be, and opens its
// state file. The error is one line for the operator.
func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory %s: %w; run as root, or give another with --state", dir, cause(err))
	}
	lock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "state.db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, InitialMmapSize: stateMapBytes})
	if err != nil {
		lock.Close()
		err = fmt.Errorf("state file %s: %w", path, cause(err))
		if errors.Is(err, boltErrors.ErrInvalid) || errors.Is(err, boltErrors.ErrVersionMismatch) || errors.Is(err, boltErrors.ErrChecksum) {
			err = fmt.Errorf("%w; restore it, or move it away to begin without ports and flows", err)
		}
		return nil, err
	}
	s := &store{db: db, lock: lock}
	if err := s.prepare(); err != nil {
		s.close()
		return nil, fmt.Errorf("state file %s: %w", path, err)
	}
	return s, nil
}

// stateMapBytes is how much of the state file is mapped at once. When it grows
// beyond that in the middle of a transaction, all that was written so far in it
// is copied once more.
const stateMapBytes = 1 << 30

// lockPatience is how long a daemon that was just killed may take to be gone.
const lockPatience = time.Second

// lockDir takes the directory for this process alone; the kernel gives it back
// when the process ends, however it ends.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w; run as root, or give another with --state", dir, cause(err))
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
		return nil, fmt.Errorf("state directory %s: %w", dir, cause(err))
	}
	return f, nil
}

// cause strips the path and operation that the caller's text names already.
func cause(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

func (s *store) prepare() error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketPorts, bucketNames, bucketFlows, bucketGroups, bucketMeters, bucketTables} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		have := meta.Get(keyVersion)
		if have == nil {
			return meta.Put(keyVersion, number(stateVersion))
		}
		if v := binary.BigEndian.Uint32(have); v != stateVersion {
			return fmt.Errorf("layout version %d, expected %d", v, stateVersion)
		}
		return nil
	})
}

func (s *store) close() error {
	err := s.db.Close()
	s.lock.Close()
	return err
}

func number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }

// savePort adds the port, and remembers whose its number is.
func (s *store) savePort(p savedPort) error {
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

func (s *store) deletePort(no uint32) error {
	return s.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketPorts).Delete(number(no)) })
}

// changeFlows deletes and saves flows, both by rising slot, in one transaction:
// in another order a large change takes time that grows with its square.
func (s *store) changeFlows(save iter.Seq[savedFlow], remove []uint32) error {
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

// changeTables saves what groups and meters there are now, by number, and
// deletes flows, in one transaction.
func (s *store) changeTables(groups, meters map[uint32]string, remove []uint32) error {
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

// saveTableConfigs saves the settings of flow tables, by number.
func (s *store) saveTableConfigs(texts map[uint32]string) error {
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

// loaded is all that a state file holds: ports by number, flows by age.
type loaded struct {
	ports  []savedPort
	flows  []savedFlow
	groups []string
	meters []string
	tables map[uint32]string // settings
	names  map[uint32]string // of the last port with each number, deleted ones too
}

func (s *store) load() (loaded, error) {
	l := loaded{names: map[uint32]string{}}
	err := s.db.View(func(tx *bbolt.Tx) error {
		err := tx.Bucket(bucketNames).ForEach(func(k, v []byte) error {
			l.names[binary.BigEndian.Uint32(k)] = string(v)
			return nil
		})
		if err != nil {
			return err
		}
		err = tx.Bucket(bucketPorts).ForEach(func(k, v []byte) error {
			var p savedPort
			if err := json.Unmarshal(v, &p); err != nil {
				return fmt.Errorf("port %d: %w", binary.BigEndian.Uint32(k), err)
			}
			l.ports = append(l.ports, p)
			return nil
		})
		if err != nil {
			return err
		}
		err = tx.Bucket(bucketTables).ForEach(func(k, v []byte) error {
			if l.tables == nil {
				l.tables = map[uint32]string{}
			}
			l.tables[binary.BigEndian.Uint32(k)] = string(v)
			return nil
		})
		if err != nil {
			return err
		}
		for _, table := range []struct {
			bucket []byte
			into   *[]string
		}{{bucketGroups, &l.groups}, {bucketMeters, &l.meters}} {
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
			l.flows = append(l.flows, savedFlow{
				Slot: binary.BigEndian.Uint32(k), Age: binary.BigEndian.Uint64(v), Text: string(v[8:]),
			})
			return nil
		})
	})
	sort.Slice(l.flows, func(i, j int) bool { return l.flows[i].Age < l.flows[j].Age })
	return l, err
}
