// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"bytes"
	"encoding/gob"

	"weft/openflow/fdb"
)

// saved is the form in which a table is saved, in gob encoding.
type saved struct {
	// Ports maps port numbers to names. The addresses of a renamed port are not
	// restored.
	Ports map[uint32]string
	MACs  []fdb.Saved
}

// Save encodes the learned addresses for the next control process. ports maps port
// numbers to names.
func (t *Table) Save(ports map[uint32]string) ([]byte, error) {
	t.mu.RLock()
	s := saved{Ports: ports, MACs: t.table.Saved()}
	t.mu.RUnlock()
	var file bytes.Buffer
	err := gob.NewEncoder(&file).Encode(&s)
	return file.Bytes(), err
}

// Restore adds the saved addresses for which fits returns true, and returns their
// number. fits gets the name that the port had at the time of the save. data may be
// nil.
func (t *Table) Restore(data []byte, nowNS uint64, fits func(port string, l *fdb.Learn) bool) (restored int, err error) {
	if data == nil {
		return 0, nil
	}
	var s saved
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&s); err != nil {
		return 0, err
	}
	fit := s.MACs[:0]
	for _, m := range s.MACs {
		if name, ok := s.Ports[m.Learn.Port]; ok && fits(name, &m.Learn) {
			fit = append(fit, m)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.table.Restore(fit, nowNS), nil
}
