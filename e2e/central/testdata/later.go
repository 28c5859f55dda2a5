// SPDX-License-Identifier: Apache-2.0

// This file simulates a later version of Weft. A test builds programs with this file in
// package wire (see buildLater). Messages that they send or store have fields of
// unknown numbers, and on streams there are messages of unknown kinds.

package wire

import (
	"bytes"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that laterCodec extends
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// laterField is an encoded field that no version knows.
var laterField = protowire.AppendString(protowire.AppendTag(nil, 1000, protowire.BytesType), "of a later version")

// laterAbsence is a reason that no version knows.
const laterAbsence Absence = 100

func init() { encoding.RegisterCodecV2(laterCodec{encoding.GetCodecV2("proto")}) }

// laterCodec replaces gRPC's codec. The messages of etcd pass as they are.
type laterCodec struct{ encoding.CodecV2 }

func (c laterCodec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(proto.Message); ok {
		v = Later(m)
	}
	return c.CodecV2.Marshal(v)
}

// Later returns a copy of a message of this package. In the copy, it and all messages in
// it have a field of an unknown number.
func Later(m proto.Message) proto.Message {
	if m.ProtoReflect().Descriptor().ParentFile() != File_central_proto {
		return m
	}
	m = proto.Clone(m)
	makeLater(m.ProtoReflect())
	return m
}

func makeLater(m protoreflect.Message) {
	if a, ok := m.Interface().(*Answer); ok && a.Absence == Absence_ABSENCE_NOBODY {
		a.Absence = laterAbsence
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				makeLater(v.List().Get(i).Message())
			}
		default:
			makeLater(v.Message())
		}
		return true
	})
	if unknown := m.GetUnknown(); !bytes.Contains(unknown, laterField) {
		m.SetUnknown(append(bytes.Clone(unknown), laterField...))
	}
}

// LaterBatch changes an encoded ToHost with a Batch like Later, and adds a message of an
// unknown kind to the Batch.
func LaterBatch(data mem.BufferSlice) (mem.BufferSlice, error) {
	m := new(ToHost)
	if err := proto.Unmarshal(data.Materialize(), m); err != nil {
		return nil, err
	}
	if b := m.GetBatch(); b != nil {
		b.Messages = append(b.Messages, new(ToHost))
	}
	later, err := proto.Marshal(Later(m))
	return mem.BufferSlice{mem.SliceBuffer(later)}, err
}

// laterStream is the stream of a host. It sends a message of an unknown kind after each
// message.
type laterStream struct{ grpc.ClientStream }

func (s laterStream) SendMsg(m any) error {
	if err := s.ClientStream.SendMsg(m); err != nil {
		return err
	}
	return s.ClientStream.SendMsg(new(FromHost))
}
