// SPDX-License-Identifier: Apache-2.0

// Package wire has the messages between weft-central, hosts and clients, which protoc generates from
// central.proto. It also computes the digests with which a host and a central find out whether they
// know the same about a network.
package wire

//go:generate ./generate
