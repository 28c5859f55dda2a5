// SPDX-License-Identifier: Apache-2.0

// Package wire has the messages of weft-central, which protoc generates from
// central.proto, and what both ends of a session must compute alike.
package wire

//go:generate ./generate
