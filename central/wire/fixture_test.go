// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "write the fixtures again; only before a field of them is released")

// fixtures has a message of each kind that versions of Weft exchange or store, with all
// its fields. The files in testdata have the bytes of these messages in version 1 of
// the format.
func fixtures() map[string]proto.Message {
	net := &Net{Id: "n1", Name: "blue", Vni: 100, Mtu: 1400, Flood: true}
	port := &Port{Id: "p1", Name: "web", Net: "n1", Mac: []byte{2, 0, 0, 0, 0, 1}, Addresses: [][]byte{{10, 0, 0, 1}}, Host: "h1", MoveTo: "h2", Unchecked: true}
	place := &Place{Port: "p1", Net: "n1", Mac: port.Mac, Addresses: port.Addresses, Host: "h1", Endpoint: []byte{192, 0, 2, 1}, Generation: 7}
	welcome := &Welcome{Host: "h1", Endpoint: []byte{192, 0, 2, 1}}
	reset := &NetReset{View: &NetView{Net: net, Asked: true}, Places: []*Place{place}, Members: [][]byte{{192, 0, 2, 2}}}
	local := &LocalPort{Port: port, Bound: true, Generation: 7}
	return map[string]proto.Message{
		"net": net, "port": port, "place": place,
		"host":     &Host{Id: "h1", Name: "alpha", Endpoint: []byte{192, 0, 2, 1}},
		"bind":     &Bind{Port: "p1", Host: "h1", Endpoint: []byte{192, 0, 2, 1}},
		"status":   &HostStatus{Host: "h1", Applied: 9, Version: "1", Trouble: "none"},
		"state":    &HostState{Revision: 9, Welcome: welcome, Nets: []*NetReset{reset}, Ports: []*LocalPort{local}},
		"hello":    &FromHost{Message: &FromHost_Hello{Hello: &Hello{Version: "1", Known: []*NetDigest{{Net: "n1", Digest: 5}}, Ports: []string{"web"}}}},
		"attach":   &FromHost{Message: &FromHost_Attach{Attach: &Attach{Port: "web", Seen: true}}},
		"detach":   &FromHost{Message: &FromHost_Detach{Detach: &Detach{Port: "web"}}},
		"applied":  &FromHost{Message: &FromHost_Applied{Applied: &Applied{Revision: 9, Trouble: "none"}}},
		"question": &FromHost{Message: &FromHost_Question{Question: &Question{Number: 3, Net: "n1", Of: &Question_Address{Address: []byte{10, 0, 0, 1}}}}},
		"welcome":  &ToHost{Message: &ToHost_Welcome{Welcome: welcome}},
		"reset":    &ToHost{Message: &ToHost_Reset_{Reset_: reset}},
		"update":   &ToHost{Message: &ToHost_Update{Update: &NetUpdate{Net: "n1", Gone: true, View: reset.View, Places: reset.Places, Removed: []string{"p2"}, Joined: reset.Members, Left: reset.Members}}},
		"ports":    &ToHost{Message: &ToHost_Port{Port: &PortUpdate{Ports: []*LocalPort{local}, Removed: []string{"p2"}}}},
		"answer":   &ToHost{Message: &ToHost_Answer{Answer: &Answer{Number: 3, Place: place}}},
		"absent":   &ToHost{Message: &ToHost_Answer{Answer: &Answer{Number: 3, Absence: Absence_ABSENCE_NOBODY}}},
		"revision": &ToHost{Message: &ToHost_Revision{Revision: &Revision{Revision: 9, Report: true}}},
		"refused":  &ToHost{Message: &ToHost_Refused{Refused: &Refused{Port: "p1", Why: "no"}}},
	}
}

// This version of Weft reads messages of format version 1, and writes messages that
// format version 1 can read: each field has its old number and type. It keeps unknown
// fields, which a later version has written.
func TestFormatOfVersion1(t *testing.T) {
	for name, m := range fixtures() {
		file := filepath.Join("testdata", "v1", name)
		now, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if *update {
			if err := os.WriteFile(file, now, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		old, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(old, now) {
			t.Errorf("%s: version 1 writes %x, this version %x", name, old, now)
		}
		later := protowire.AppendString(protowire.AppendTag(old, 1000, protowire.BytesType), "of a later version")
		read := m.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(later, read); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if again, err := proto.Marshal(read); err != nil || !bytes.Contains(again, []byte("of a later version")) {
			t.Errorf("%s: a field of a later version is lost: %x, %v", name, again, err)
		}
		read.ProtoReflect().SetUnknown(nil)
		if !proto.Equal(read, m) {
			t.Errorf("%s: %v is read as %v", name, m, read)
		}
	}
}

func TestMACNumber(t *testing.T) {
	mac := []byte{2, 0, 0, 0xab, 0, 1}
	if n := MACNumber(mac); n != 0x020000ab0001 || !bytes.Equal(MACBytes(n), mac) {
		t.Errorf("%x is %x, and back %x", mac, n, MACBytes(n))
	}
}
