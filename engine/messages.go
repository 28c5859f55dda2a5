// SPDX-License-Identifier: Apache-2.0

// Package engine is the process of the workers, seen from both sides: the messages,
// the server that runs in the engine, and the client with which control starts and
// reaches it.
//
// The engine keeps the requests that control sends it, descriptors included, and
// returns them to the next control process that connects. Control keeps duplicates
// and sends them to the next engine. So either process can be killed.
package engine

import (
	"encoding/json"

	"weft/conntrack"
	"weft/datapath"
)

// The socket in the state directory is of type SOCK_SEQPACKET. Each packet is one
// message: a JSON Request with descriptors as SCM_RIGHTS, answered by one Reply. One
// control process is connected at a time; a new one replaces the old one.
const (
	// SocketName is the name of the engine's socket in the state directory; its mode
	// is 0600.
	SocketName = "engine.sock"
	// MaxDescriptors is the number of descriptors that the kernel passes in one
	// message (SCM_MAX_FD). A message with more is refused.
	MaxDescriptors = 253
)

// Request operations.
const (
	// OpStart starts the workers with the Start. Descriptors: one region a worker,
	// then one command eventfd a worker, the upcall eventfd, and the region of the
	// connection table. An engine accepts it only once.
	OpStart = "start"
	// OpAttach opens the device of the Attach from the request's descriptors and
	// gives its queues to the workers. If the port is already attached, it is
	// detached first.
	OpAttach = "attach"
	// OpDetach takes the port Port from the workers and closes it. The answer comes
	// when no worker uses the port any more; its State is the device's.
	OpDetach = "detach"
	// OpKeep stores Blob and all descriptors under Key for the next control process,
	// until an OpForget or another OpKeep of Key.
	OpKeep   = "keep"
	OpForget = "forget"
	// OpRecall is answered by one Reply for each kept request, with duplicates of its
	// descriptors: the OpStart, the attached ports, and the keys. The final Reply has
	// Last set.
	OpRecall = "recall"
	// OpStop ends the engine after its answer.
	OpStop = "stop"
)

// Request is one message from control to the engine.
type Request struct {
	Op     string          `json:"op"`
	Start  *Start          `json:"start,omitempty"`
	Attach *Attach         `json:"attach,omitempty"`
	Port   uint32          `json:"port,omitempty"`
	Key    string          `json:"key,omitempty"`
	Blob   json.RawMessage `json:"blob,omitempty"`
}

// port returns the port that a request is about, 0 for none.
func (r *Request) port() uint32 {
	if r.Attach != nil {
		return r.Attach.Port
	}
	return r.Port
}

// Start is the configuration of the workers.
type Start struct {
	Cores []int          `json:"cores"` // cores of the workers, one worker a core
	Sizes datapath.Sizes `json:"sizes"`
	// SpinUS is the time in µs for which a worker polls empty queues before it
	// sleeps.
	SpinUS int `json:"spin_us"`
	// Connections are the limits of the connection table; zero means the defaults.
	Connections conntrack.Sizes `json:"connections"`
}

// Attach describes a device. Spec has the format of the device's back end.
type Attach struct {
	Port uint32          `json:"port"` // number of the datapath port
	Name string          `json:"name"`
	Kind string          `json:"kind"` // kind of the device: vhost-user, tap or af_xdp
	Spec json.RawMessage `json:"spec"`
	// Tunnel marks an uplink, whose received frames are VXLAN and are decapsulated.
	Tunnel bool `json:"tunnel,omitempty"`
}

// Reply is the answer to a Request.
type Reply struct {
	Error string          `json:"error,omitempty"` // reason of the refusal; empty: the request is done
	State json.RawMessage `json:"state,omitempty"`
	// Kept is one kept request, as it was sent; only in answers to OpRecall.
	Kept *Request `json:"kept,omitempty"`
	Last bool     `json:"last,omitempty"`
}
