// SPDX-License-Identifier: Apache-2.0

package macs

import (
	"testing"

	"weft/openflow/fdb"
)

// A restored table lacks only the saved addresses that no longer fit their port.
func TestSavedAddressesAreRestored(t *testing.T) {
	const segment, now = fdb.Segment(1), 1000
	before := fdb.New(0, 0)
	for port := range uint32(3) {
		before.Learn(fdb.Learn{Valid: true, Segment: segment, Port: port + 1, MAC: uint64(port + 1)}, now)
	}
	data, err := encode(map[uint32]string{1: "a", 2: "b"}, before.Saved()) // port 3 has no name
	if err != nil {
		t.Fatal(err)
	}
	after := fdb.New(0, 0)
	fitting, err := decode(data, func(port string, l *fdb.Learn) bool { return port == "a" && l.Port == 1 })
	if n := after.Restore(fitting, now+1); n != 1 || err != nil || after.Len() != 1 {
		t.Errorf("restored %d, %v; the table has %d addresses, want 1", n, err, after.Len())
	}
	if port, ok := after.Locate(segment, 0, 1); port != 1 || !ok {
		t.Errorf("address 1 is at port %d, %v", port, ok)
	}
	if fitting, err := decode(nil, nil); fitting != nil || err != nil {
		t.Errorf("without a file: %v, %v", fitting, err)
	}
	if _, err := decode(data[:len(data)/2], nil); err == nil {
		t.Error("half a file is restored without an error")
	}
}
