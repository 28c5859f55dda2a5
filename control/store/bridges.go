// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"go.etcd.io/bbolt"

	"weft/control/change"
)

// Bridge has the settings of a bridge as the state file keeps them. The first bridge has number
// 0. Its name and datapath id are in weftd's configuration, which may also have its
// controllers.
type Bridge struct {
	Number      uint8    `json:"number"`
	Name        string   `json:"name"`
	DatapathID  uint64   `json:"datapath_id,omitempty"` // 0: weftd derives it when the bridge connects
	FailMode    string   `json:"fail_mode,omitempty"`
	Controllers []string `json:"controllers,omitempty"`
}

// Key identifies a group, a meter or a table by its bridge and its number there.
type Key struct {
	Bridge uint8
	Number uint32
}

// bytes returns the encoding of the key in the state file. For the first bridge, it equals the
// encoding of a weftd without further bridges, so that old state files stay readable.
func (k Key) bytes() []byte {
	if k.Bridge == 0 {
		return number(k.Number)
	}
	return append(number(uint32(k.Bridge)), number(k.Number)...)
}

func keyOf(b []byte) (k Key, err error) {
	switch len(b) {
	case 4:
		return Key{Number: binary.BigEndian.Uint32(b)}, nil
	case 8:
		return Key{uint8(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:])}, nil
	}
	return k, fmt.Errorf("key of %d bytes", len(b))
}

// In the state file, the highest byte of a flow's age is the bridge's number.
const (
	bridgeAt = 56
	ageMask  = 1<<bridgeAt - 1
)

// SaveBridge saves a bridge when tx commits. It also raises the file's layout version, so that
// a weftd that knows only one bridge refuses the state file.
func (s *Store) SaveBridge(tx *change.Tx, b Bridge) {
	s.write(tx, func(file *bbolt.Tx) error {
		text, err := json.Marshal(b)
		if err != nil {
			return err
		}
		if err := file.Bucket(bucketMeta).Put(keyVersion, number(layoutOfBridges)); err != nil {
			return err
		}
		return file.Bucket(bucketBridges).Put(number(uint32(b.Number)), text)
	})
}

// DeleteBridge deletes a bridge with its flows, groups, meters, table settings and mappings of
// Geneve options when tx commits. The argument "flows" has the slots of the bridge's flows
// (Flow.Slot). The ports stay until DeletePort deletes them.
func (s *Store) DeleteBridge(tx *change.Tx, bridge uint8, flows []uint32) {
	s.write(tx, func(file *bbolt.Tx) error {
		if err := deleteFlows(file.Bucket(bucketFlows), flows); err != nil {
			return err
		}
		for _, bucket := range [][]byte{bucketGroups, bucketMeters, bucketTables, bucketTLVs} {
			if err := deleteRange(file.Bucket(bucket), Key{Bridge: bridge}.bytes(), Key{Bridge: bridge + 1}.bytes()); err != nil {
				return err
			}
		}
		return deleteSettings(file, bridge)
	})
}

// DeleteBridgeSettings deletes the settings of a bridge when tx commits. The bridge's flows,
// groups and ports stay.
func (s *Store) DeleteBridgeSettings(tx *change.Tx, bridge uint8) {
	s.write(tx, func(file *bbolt.Tx) error { return deleteSettings(file, bridge) })
}

// deleteSettings deletes the settings of a bridge and the saved port names of its numbers. If only
// the first bridge is left, it lowers the layout version, so that a weftd that knows only one bridge
// can read the state file again.
func deleteSettings(tx *bbolt.Tx, bridge uint8) error {
	bridges := tx.Bucket(bucketBridges)
	if err := bridges.Delete(number(uint32(bridge))); err != nil {
		return err
	}
	if err := deleteRange(tx.Bucket(bucketNames), number(NumberKey(bridge, 0)), number(NumberKey(bridge+1, 0))); err != nil {
		return err
	}
	if first, _ := bridges.Cursor().First(); first != nil {
		return nil
	}
	return tx.Bucket(bucketMeta).Put(keyVersion, number(layoutVersion))
}

// deleteRange deletes the keys of a bucket from "first" up to "end". It does not delete "end"
// itself.
func deleteRange(b *bbolt.Bucket, first, end []byte) error {
	cursor := b.Cursor()
	for k, _ := cursor.Seek(first); k != nil && bytes.Compare(k, end) < 0; k, _ = cursor.Seek(first) {
		if err := cursor.Delete(); err != nil {
			return err
		}
	}
	return nil
}

func loadBridges(tx *bbolt.Tx) (list []Bridge, err error) {
	err = tx.Bucket(bucketBridges).ForEach(func(k, v []byte) error {
		var b Bridge
		if err := json.Unmarshal(v, &b); err != nil {
			return fmt.Errorf("bridge %d: %w", binary.BigEndian.Uint32(k), err)
		}
		list = append(list, b)
		return nil
	})
	return list, err
}

// loadTexts reads a bucket of groups, meters, table settings or TLV mappings.
func loadTexts(tx *bbolt.Tx, bucket []byte) (map[Key]string, error) {
	var texts map[Key]string
	err := tx.Bucket(bucket).ForEach(func(k, v []byte) error {
		key, err := keyOf(k)
		if texts == nil {
			texts = map[Key]string{}
		}
		texts[key] = string(v)
		return err
	})
	return texts, err
}
