// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that Codec extends
	"google.golang.org/grpc/mem"
)

// rawMessage is an encoded wire.ToHost. Several sessions queue the same bytes, so
// they are never changed.
type rawMessage []byte

// Codec is gRPC's codec of protobuf, extended to send messages that are already
// encoded. The server of a Hub must use it: grpc.ForceServerCodecV2(hub.Codec()).
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2("proto")} }

type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if raw, ok := v.(rawMessage); ok {
		return mem.BufferSlice{mem.SliceBuffer(raw)}, nil
	}
	return c.CodecV2.Marshal(v)
}
