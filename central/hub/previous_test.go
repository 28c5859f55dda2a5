// SPDX-License-Identifier: Apache-2.0

package hub_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"weft/central/hub"
	"weft/central/store"
	"weft/internal/waitfor"
)

// previousCodec is a Codec of a hub whose hosts are of the previous version, or the
// other way round. It encodes each message again as the previous version knows it:
// fields and kinds of messages that this version has added are lost in both directions.
// Only the format is that of the previous version: the peer runs this version's code.
type previousCodec struct {
	encoding.CodecV2
	toHost, fromHost protoreflect.MessageDescriptor
}

// newPreviousCodec reads the format of the previous version, which is 0.3.0. After a release, replace the
// file by the released format: protoc --descriptor_set_out=testdata/previous.binpb central.proto
func newPreviousCodec(t *testing.T) previousCodec {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "wire", "testdata", "previous.binpb"))
	if err != nil {
		t.Fatal(err)
	}
	var set descriptorpb.FileDescriptorSet
	if err := proto.Unmarshal(data, &set); err != nil {
		t.Fatal(err)
	}
	files, err := protodesc.NewFiles(&set)
	if err != nil {
		t.Fatal(err)
	}
	find := func(name protoreflect.FullName) protoreflect.MessageDescriptor {
		d, err := files.FindDescriptorByName(name)
		if err != nil {
			t.Fatal(err)
		}
		return d.(protoreflect.MessageDescriptor)
	}
	return previousCodec{hub.Codec(), find("weft.central.v1.ToHost"), find("weft.central.v1.FromHost")}
}

func (c previousCodec) Marshal(v any) (mem.BufferSlice, error) {
	data, err := c.CodecV2.Marshal(v)
	if err != nil {
		return nil, err
	}
	return recode(c.toHost, data)
}

func (c previousCodec) Unmarshal(data mem.BufferSlice, v any) error {
	data, err := recode(c.fromHost, data)
	if err != nil {
		return err
	}
	return c.CodecV2.Unmarshal(data, v)
}

func recode(kind protoreflect.MessageDescriptor, data mem.BufferSlice) (mem.BufferSlice, error) {
	m := dynamicpb.NewMessage(kind)
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data.Materialize(), m); err != nil {
		return nil, err
	}
	known, err := proto.Marshal(m)
	return mem.BufferSlice{mem.SliceBuffer(known)}, err
}

// A hub and agents of two versions serve the same declarations: pushed and asked
// networks, a move, and a restart of the hub.
func TestPeersOfPreviousVersion(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.codec = newPreviousCodec(t)
	r.start()
	objects := []store.Object{netObject("n1", 100, true), netObject("n2", 200, false)}
	for n := range 1100 {
		objects = append(objects, portObject(n, "n2", ""))
	}
	r.memory.Put(append(objects, portObject(2001, "n1", "h1"), portObject(2002, "n1", ""))...)
	one, two := r.host(1, locals("port1", "port2001")...), r.host(2, locals("port2", "port2002")...)
	r.settled()
	for range 2 {
		waitfor.True(t, "host 1 has a place, and the answer that nobody has the other address", func() bool {
			one.agent.Ask("port1", 200, 0x020000000002, netip.Addr{})
			one.agent.Ask("port1", 200, 0x02000000ffff, netip.Addr{})
			return one.recorder.Has(200, 0x020000000002) && one.recorder.Unknown() > 0
		})
		r.stop()
		r.start()
		r.settled()
		one.stop()
		r.startAgent(one)
	}
	two.local = append(two.local, locals("port2001")...)
	two.recorder.SetPorts(two.local...)
	two.agent.PortsChanged()
	moved := portObject(2001, "n1", "h2")
	r.memory.Put(moved)
	waitfor.True(t, "the moved port is bound to host 2", func() bool { return r.memory.Declaration().Binds["p2001"].GetHost() == "h2" })
	r.settled()
}
