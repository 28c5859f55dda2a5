// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"strings"
	"testing"
)

// Load restores everything of a saved table. After a reboot of the machine, it restores only limits
// and timeouts.
func TestSaveAndLoad(t *testing.T) {
	r := newRig(t, 256)
	short := DefaultTimeouts
	short[udpMultiple] = 77
	r.tr.SetPolicy(4, &short)
	r.tr.SetZonePolicy(1, 4)
	r.tr.SetZoneLimit(9, 5)
	r.tr.SetDefaultZoneLimit(100)
	snat := natTo(NATSrc, "192.0.2.1", "192.0.2.1")
	for i := range 20 {
		r.expect(udpFrame("10.0.0.1:"+port(i+1), server, 4), snat, Tracked|New|SNAT)
	}
	r.expect(udpFrame(server, "192.0.2.1:1", 4), bare, Tracked|Established|Reply|DNAT)
	r.expect(tcpFrame(guest6, srv6, tcpSegment{flags: "S", seq: 1, window: 100, scale: 3}), commit, Tracked|New)
	r.expect(tcpFrame(srv6, guest6, tcpSegment{flags: "SA", seq: 1, ack: 2, window: 100, scale: 3}), look, Tracked|Established|Reply)
	mark := commit
	mark.Mark, mark.MarkMask, mark.Label, mark.LabelMask = 7, 7, [2]uint64{1, 2}, [2]uint64{3, 3}
	r.expect(icmpFrame("10.0.0.1", "10.0.1.1", 8, 0, 7), mark, Tracked|New)
	before := dump(r, FormatOptions{Statistics: true})
	first := &r.tr.conns[0].meta
	first.Store(first.Load() | (r.tr.epoch+1)<<32) // the lock of a killed engine
	var file bytes.Buffer
	if err := r.tr.Save(&file, "this boot", r.now); err != nil {
		t.Fatal(err)
	}
	saved := file.Bytes()

	for _, boot := range []string{"this boot", "another"} {
		m := newMemory(t, 256)
		n, err := m.Load(bytes.NewReader(saved), boot, r.now)
		if err != nil {
			t.Fatal(err)
		}
		if limit, _ := m.ZoneLimit(9); limit != 5 || m.DefaultZoneLimit() != 100 || m.Policy(m.ZonePolicy(1)) != short {
			t.Error("the settings were not restored")
		}
		if boot == "another" {
			if n != 0 || m.Count() != 0 {
				t.Errorf("%d connections of another boot were restored", n)
			}
			continue
		}
		r.tr = NewTracker(Open(m, 1), 3)
		check(t, r.tr.Table)
		if n != 22 || dump(r, FormatOptions{Statistics: true}) != before {
			t.Errorf("%d connections\n%s, saved\n%s", n, dump(r, FormatOptions{Statistics: true}), before)
		}
		r.expect(udpFrame(server, "192.0.2.1:2", 4), bare, Tracked|Established|Reply|DNAT)
		r.expect(tcpFrame(guest6, srv6, tcpSegment{flags: "A", seq: 2, ack: 2, window: 1}), look, Tracked|Established)
		r.expect(tcpFrame(guest6, srv6, tcpSegment{flags: "A", seq: 90000, ack: 2, window: 1}), look, Tracked|Invalid)
	}
	m := newMemory(t, 64)
	for _, bad := range [][]byte{nil, []byte(strings.Repeat("x", 1<<20)), saved[:100], saved[:len(saved)-5]} {
		if _, err := m.Load(bytes.NewReader(bad), "this boot", r.now); err == nil {
			t.Errorf("Load accepts a truncated or invalid file of %d bytes", len(bad))
		}
	}
}

// Load refuses a truncated file and a file of another format version. The two errors
// differ.
func TestLoadSaysWhy(t *testing.T) {
	var file bytes.Buffer
	m := newMemory(t, 256)
	if err := m.Save(&file, "boot", 0); err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(file.Bytes())
	other[len(saveMagic)-2]++
	for want, saved := range map[string][]byte{
		"saved connections: unexpected EOF": nil,
		"saved connections have another format version, \"weft connections 2\\n\": want \"weft connections 1\\n\"": other,
	} {
		if saved == nil {
			saved = file.Bytes()[:100]
		}
		if _, err := m.Load(bytes.NewReader(saved), "boot", 0); err == nil || err.Error() != want {
			t.Errorf("%d bytes: %v, want %s", len(saved), err, want)
		}
	}
}
