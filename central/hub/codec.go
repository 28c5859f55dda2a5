// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that Codec extends
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// rawMessage is an encoded wire.ToHost that is an element of a wire.Batch. Sessions
// share its bytes, so the bytes must not change.
type rawMessage []byte

// rawBatch is a wire.ToHost that contains a wire.Batch of encoded messages.
type rawBatch []rawMessage

const (
	// maxBatch limits the bytes of a batch. A longer message is sent in a batch of its own.
	maxBatch = 1 << 20

	fieldBatch    = 8 // wire.ToHost.batch
	fieldMessages = 1 // wire.Batch.messages
)

// Codec is a gRPC codec that passes encoded protobuf messages on without decoding them.
// The server of a Hub needs it: grpc.ForceServerCodecV2(hub.Codec()).
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

// window is the flow-control window in bytes for messages of hosts. A constant window
// turns off gRPC's estimate of the bandwidth, which costs two pings for each message.
const window = 1 << 20

// ServerOptions returns the options of a Hub's gRPC server: Codec, and a constant flow-control window.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ForceServerCodecV2(Codec()), grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window)}
}

type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if b, ok := v.(rawBatch); ok {
		return b.buffers(), nil
	}
	return c.CodecV2.Marshal(v)
}

// rawOf makes an encoded wire.ToHost an element of a wire.Batch: it puts the tag and the length in
// front.
func rawOf(message []byte) rawMessage {
	raw := make(rawMessage, 0, protowire.SizeTag(fieldMessages)+protowire.SizeBytes(len(message)))
	return protowire.AppendBytes(protowire.AppendTag(raw, fieldMessages, protowire.BytesType), message)
}

func (b rawBatch) buffers() mem.BufferSlice {
	size := 0
	for _, m := range b {
		size += len(m)
	}
	head := protowire.AppendVarint(protowire.AppendTag(nil, fieldBatch, protowire.BytesType), uint64(size))
	buffers := make(mem.BufferSlice, 0, len(b)+1)
	buffers = append(buffers, mem.SliceBuffer(head))
	for _, m := range b {
		buffers = append(buffers, mem.SliceBuffer(m))
	}
	return buffers
}

func (b rawBatch) cut() (first, rest rawBatch) {
	size := 0
	for i, m := range b {
		if size += len(m); size > maxBatch && i > 0 {
			return b[:i], b[i:]
		}
	}
	return b, nil
}
