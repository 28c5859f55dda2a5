// SPDX-License-Identifier: Apache-2.0

// Package ofp encodes and decodes OpenFlow messages: versions 1.0, 1.3, 1.4 and 1.5,
// with the extensions of Nicira that ovs-ofctl uses. Package openflow encodes and decodes
// the matches and actions within them.
//
// A message is a []byte that begins with its header. Identify finds its Kind in the table of messages
// (kinds.go). The Decode functions take the Request that Identify returns. The Append functions
// append a message, or one entry of a multipart reply (Reply), to a []byte.
//
// Every length that a message states is checked against the bytes that the message has. The
// errors of Decode functions are *openflow.CodedError; AppendError makes the error message of
// them.
package ofp
