// SPDX-License-Identifier: Apache-2.0

// Package wire has the messages between weft-central, hosts and clients, which protoc
// generates from central.proto. It also has the digests that both ends of a session
// must compute in the same way.
package wire

//go:generate ./generate
