// SPDX-License-Identifier: Apache-2.0

// Package store keeps the switch's state on disk: ports, flows, groups, meters, table settings and
// learned addresses, and the tracked connections of a stopped daemon.
//
// A lock file protects the state directory. The state file allows one writing transaction at a time,
// and a transaction waits for the disk. Callers may hold the configuration lock. They hold none of
// the locks that the answer to a miss needs, because misses must not wait for the disk.
package store

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sort"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	boltErrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"

	"weft/control/change"
	"weft/control/usererr"
	"weft/internal/safepath"
)

// layoutVersion is the layout of the state file, and layoutOfBridges the layout of a file
// with several bridges. Open refuses other layouts.
const (
	layoutVersion   = 1
	layoutOfBridges = 2
)

var (
	bucketMeta    = []byte("meta")
	bucketPorts   = []byte("ports")   // key: port number, 32 bits big endian; value: Port in JSON
	bucketNames   = []byte("names")   // key: port number or NumberKey, 32 bits big endian; value: last port name
	bucketBridges = []byte("bridges") // key: bridge number, 32 bits big endian; value: Bridge in JSON
	bucketGroups  = []byte("groups")  // key: Key of the group number; value: text of the group
	bucketMeters  = []byte("meters")  // key: Key of the meter number; value: text of the meter
	bucketFlows   = []byte("flows")   // key: row, 32 bits big endian; value: bridge, 8 bits, age, 56 bits, and text of the flow
	bucketTables  = []byte("tables")  // key: Key of the table number; value: settings of the table
	bucketTLVs    = []byte("tlvs")    // key: Key of the number of tun_metadataN; value: text of the mapping
	keyVersion    = []byte("version")
)

// Port is a port as the state file keeps it, with the options that the client requested.
type Port struct {
	Number  uint32   `json:"number"` // in the data path
	Name    string   `json:"name"`
	Options []string `json:"options"`
	// InFlows is the port's number in flows. 0 means that Number is also its number in
	// flows, as in the first bridge.
	InFlows uint32 `json:"in_flows,omitempty"`
	// Bridge is the number of the port's bridge. Only SavePort uses it; Options have the
	// bridge's name.
	Bridge uint8 `json:"-"`
}

// NumberKey returns a key for inFlows, the number of a port in the flows of its bridge. Ports of
// different bridges may have the same number, but their keys differ. In the first bridge (number 0), the
// key is inFlows itself.
func NumberKey(bridge uint8, inFlows uint32) uint32 { return uint32(bridge)<<numberBridgeAt | inFlows }

// numberBridgeAt is the position of the bridge's number in a NumberKey. Numbers of ports have
// 16 bits.
const numberBridgeAt = 24

// BridgeOf returns the bridge in a NumberKey.
func BridgeOf(key uint32) uint8 { return uint8(key >> numberBridgeAt) }

// Flow is a flow as text. Slot is the flow's index in the state file, and in the shared memory with
// the statistics. Age orders flows by the time of their addition.
type Flow struct {
	Bridge uint8
	Slot   uint32
	Age    uint64
	Text   string
}

// Store is an open state directory. When a method that changes the state returns, the
// change is on the disk. If the method has a transaction (change.Tx), it is on the disk when the
// transaction has ended without an error.
type Store struct {
	dir  *os.Root
	db   *bbolt.DB
	lock *os.File // lock file of the state directory, locked with flock
}

// Open locks the state directory and opens the state file. It creates both if they are missing. The
// text of an error is one line, which tells the operator what to do.
func Open(dir string) (*Store, error) {
	root, err := openDir(dir)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w; %s", dir, usererr.Cause(err), otherDir())
	}
	lock, err := lockDir(root, dir)
	if err != nil {
		root.Close()
		return nil, err
	}
	path := filepath.Join(dir, "state.db")
	db, err := openFile(root, path)
	if err != nil {
		lock.Close()
		root.Close()
		err = fmt.Errorf("state file %s: %w", path, usererr.Cause(err))
		if errors.Is(err, errDamaged) || errors.Is(err, boltErrors.ErrInvalid) || errors.Is(err, boltErrors.ErrVersionMismatch) || errors.Is(err, boltErrors.ErrChecksum) {
			err = fmt.Errorf("%w; restore it, or move it away to begin without ports and flows", err)
		}
		return nil, err
	}
	s := &Store{dir: root, db: db, lock: lock}
	if err := sound(s.prepare); err != nil {
		s.Close()
		return nil, fmt.Errorf("state file %s: %w", path, err)
	}
	return s, nil
}

// errDamaged is the error about a state file that is shorter than its own header says, or whose
// pages are invalid.
var errDamaged = errors.New("the file is cut off or damaged")

// openFile opens the state file and checks that it is complete. bbolt maps the file, and would
// read beyond the end of one that was cut off.
func openFile(root *os.Root, path string) (db *bbolt.DB, err error) {
	var f *os.File
	err = sound(func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, InitialMmapSize: stateMapBytes,
			OpenFile: func(_ string, flags int, mode os.FileMode) (*os.File, error) {
				f, err = root.OpenFile("state.db", flags|unix.O_NOFOLLOW, mode)
				return f, err
			}})
		if err != nil {
			return err
		}
		return db.View(func(tx *bbolt.Tx) error {
			if info, err := f.Stat(); err != nil || info.Size() < tx.Size() {
				return errors.Join(errDamaged, err)
			}
			return nil
		})
	})
	if err != nil && db != nil {
		db.Close()
	}
	return db, err
}

// sound calls readFile, which reads the state file through bbolt. bbolt panics on a page that
// is missing or invalid. sound then returns errDamaged.
func sound(readFile func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			err = errDamaged
		}
	}()
	return readFile()
}

// otherDir returns advice for the operator, if this process cannot use the state directory.
func otherDir() string {
	if os.Geteuid() == 0 {
		return "or give another with --state"
	}
	return "run as root, or give another with --state"
}

// openDir opens the state directory. It refuses a directory that other users can
// change. The returned root stays in this directory, even if the path changes.
func openDir(dir string) (*os.Root, error) {
	f, err := safepath.Private(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// stateMapBytes is the size of the mapped part of the state file in bytes. When the file grows
// beyond this size, bbolt maps it anew, and the transaction copies its data.
const stateMapBytes = 1 << 30

// lockPatience is the time that Open waits for the lock, which a killed daemon may still hold
// for a moment.
const lockPatience = time.Second

// lockDir locks the state directory until this process ends.
func lockDir(root *os.Root, dir string) (*os.File, error) {
	f, err := root.OpenFile("lock", os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w; %s", dir, usererr.Cause(err), otherDir())
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
		for _, name := range [][]byte{bucketMeta, bucketBridges, bucketPorts, bucketNames, bucketFlows, bucketGroups, bucketMeters, bucketTables, bucketTLVs} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		have := meta.Get(keyVersion)
		if have == nil {
			return meta.Put(keyVersion, number(layoutVersion))
		}
		if v := binary.BigEndian.Uint32(have); v != layoutVersion && v != layoutOfBridges {
			return fmt.Errorf("layout version %d, expected %d or %d", v, layoutVersion, layoutOfBridges)
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

// SavePort saves a port when tx commits. It also saves, for each of the port's two numbers, the
// port's name as the last one that had the number.
func (s *Store) SavePort(tx *change.Tx, p Port) {
	s.write(tx, func(file *bbolt.Tx) error {
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		names := file.Bucket(bucketNames)
		if err := names.Put(number(p.Number), []byte(p.Name)); err != nil {
			return err
		}
		if p.InFlows != 0 {
			if err := names.Put(number(NumberKey(p.Bridge, p.InFlows)), []byte(p.Name)); err != nil {
				return err
			}
		}
		return file.Bucket(bucketPorts).Put(number(p.Number), text)
	})
}

// DeletePort deletes a port when tx commits. The names that SavePort has saved for the port's
// numbers stay.
func (s *Store) DeletePort(tx *change.Tx, port uint32) {
	s.write(tx, func(file *bbolt.Tx) error { return file.Bucket(bucketPorts).Delete(number(port)) })
}

// writes has the functions that change the state file when a transaction commits, in their order.
type writes struct{ list []func(file *bbolt.Tx) error }

// write adds the function w to those that change the state file when tx commits. They run in one
// transaction of the file.
func (s *Store) write(tx *change.Tx, w func(file *bbolt.Tx) error) {
	waiting := change.State[writes](tx, s)
	waiting.list = append(waiting.list, w)
	tx.At(change.Save, s, func() error {
		list := waiting.list
		waiting.list = nil
		err := s.db.Update(func(file *bbolt.Tx) error {
			for _, w := range list {
				if err := w(file); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("state: %w", err)
		}
		return nil
	})
}

// ChangeFlows saves and deletes flows when tx commits. The flows in save should be in ascending
// order of Flow.Slot, because any other order takes quadratic time. The commit iterates over save.
func (s *Store) ChangeFlows(tx *change.Tx, save iter.Seq[Flow], remove []uint32) {
	s.write(tx, func(file *bbolt.Tx) error { return changeFlows(file.Bucket(bucketFlows), save, remove) })
}

// WriteFlows saves and deletes flows like ChangeFlows, but at once, in a transaction of the state
// file for these flows only.
func (s *Store) WriteFlows(save iter.Seq[Flow], remove []uint32) error {
	return s.db.Update(func(file *bbolt.Tx) error { return changeFlows(file.Bucket(bucketFlows), save, remove) })
}

func changeFlows(flows *bbolt.Bucket, save iter.Seq[Flow], remove []uint32) error {
	if err := deleteFlows(flows, remove); err != nil {
		return err
	}
	if save == nil {
		return nil
	}
	for f := range save {
		value := make([]byte, 0, 8+len(f.Text))
		value = append(binary.BigEndian.AppendUint64(value, f.Age|uint64(f.Bridge)<<bridgeAt), f.Text...)
		if err := flows.Put(number(f.Slot), value); err != nil {
			return err
		}
	}
	return nil
}

func deleteFlows(flows *bbolt.Bucket, remove []uint32) error {
	for _, slot := range slices.Sorted(slices.Values(remove)) {
		if err := flows.Delete(number(slot)); err != nil {
			return err
		}
	}
	return nil
}

// ReplaceGroups replaces the saved groups and meters of all bridges when tx commits.
func (s *Store) ReplaceGroups(tx *change.Tx, groups, meters map[Key]string) {
	s.write(tx, func(file *bbolt.Tx) error {
		if err := replaceBucket(file, bucketGroups, groups); err != nil {
			return err
		}
		return replaceBucket(file, bucketMeters, meters)
	})
}

// SaveTableConfigs replaces the saved settings of the flow tables of all bridges when tx commits.
func (s *Store) SaveTableConfigs(tx *change.Tx, texts map[Key]string) {
	s.write(tx, func(file *bbolt.Tx) error { return replaceBucket(file, bucketTables, texts) })
}

// SaveTLVs replaces the saved mappings of Geneve options of all bridges (TLV maps) when tx commits.
func (s *Store) SaveTLVs(tx *change.Tx, texts map[Key]string) {
	s.write(tx, func(file *bbolt.Tx) error { return replaceBucket(file, bucketTLVs, texts) })
}

func replaceBucket(tx *bbolt.Tx, name []byte, rows map[Key]string) error {
	if err := tx.DeleteBucket(name); err != nil {
		return err
	}
	b, err := tx.CreateBucket(name)
	if err != nil {
		return err
	}
	for key, text := range rows {
		if err := b.Put(key.bytes(), []byte(text)); err != nil {
			return err
		}
	}
	return nil
}

// State is the content of a state file when the control process starts. Ports are sorted by number,
// flows by age.
type State struct {
	Bridges []Bridge // by number
	Ports   []Port
	Flows   []Flow
	// Groups, Meters and TLVs have the text of each object. Tables has the settings of each table.
	Groups, Meters, Tables, TLVs map[Key]string
	Names                        map[uint32]string // last port name of each number
}

func (s *Store) Load() (State, error) {
	l := State{Names: map[uint32]string{}}
	err := sound(func() error { return s.db.View(func(tx *bbolt.Tx) error { return load(tx, &l) }) })
	sort.Slice(l.Flows, func(i, j int) bool { return l.Flows[i].Age < l.Flows[j].Age })
	return l, err
}

func load(tx *bbolt.Tx, l *State) error {
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
	if l.Bridges, err = loadBridges(tx); err != nil {
		return err
	}
	for _, table := range []struct {
		bucket []byte
		texts  *map[Key]string
	}{{bucketTables, &l.Tables}, {bucketGroups, &l.Groups}, {bucketMeters, &l.Meters}, {bucketTLVs, &l.TLVs}} {
		if *table.texts, err = loadTexts(tx, table.bucket); err != nil {
			return err
		}
	}
	return tx.Bucket(bucketFlows).ForEach(func(k, v []byte) error {
		if len(k) != 4 || len(v) < 8 {
			return fmt.Errorf("flow entry of %d and %d bytes", len(k), len(v))
		}
		l.Flows = append(l.Flows, Flow{
			Slot: binary.BigEndian.Uint32(k), Bridge: v[0], Age: binary.BigEndian.Uint64(v) & ageMask, Text: string(v[8:]),
		})
		return nil
	})
}
