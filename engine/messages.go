// SPDX-License-Identifier: Apache-2.0

// Package engine implements the process of the workers: the messages between control
// and engine, the server that runs in the engine, and the client with which control
// starts the engine and sends requests.
//
// The engine keeps the requests that control sends, including descriptors, and
// returns them to the next control process that connects. Control keeps duplicates
// and sends them to the next engine. Therefore either process can be killed.
package engine

import (
	"encoding/json"

	"weft/conntrack"
	"weft/datapath"
)

// The socket in the state directory is of type SOCK_SEQPACKET. Each packet is one
// message: a JSON Request with descriptors as SCM_RIGHTS, or the Reply to it. One
// control process is connected at a time; a new control process replaces the old one.
const (
	// SocketName is the name of the engine's socket in the state directory; its mode
	// is 0600.
	SocketName = "engine.sock"
	// MaxDescriptors is the limit of descriptors that the kernel passes in one
	// message (SCM_MAX_FD). A message with more descriptors is refused.
	MaxDescriptors = 253
)

// Request operations.
const (
	// OpStart starts the workers with the configuration Start. Its descriptors: a
	// region for each worker, then a command eventfd for each worker, the upcall
	// eventfd, and the region of the connection table. An engine accepts only one
	// OpStart.
	OpStart = "start"
	// OpAttach opens the device described by Attach from the request's descriptors
	// and gives the device's queues to the workers. If the port is already attached,
	// it is detached first.
	OpAttach = "attach"
	// OpDetach takes the port Port from the workers and closes its device. The reply
	// comes when no worker uses the port any more, and has the device's State.
	OpDetach = "detach"
	// OpKeep stores Blob and the request's descriptors under Key for the next control
	// process, until an OpForget or another OpKeep with the same Key.
	OpKeep   = "keep"
	OpForget = "forget"
	// OpRecall is answered by one Reply for each kept request, with duplicates of its
	// descriptors: the OpStart, the attached ports, and the keys. The final Reply has
	// Last set.
	OpRecall = "recall"
	// OpStop ends the engine after the engine's reply.
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

// port returns the number of the port that a request is about, or 0.
func (r *Request) port() uint32 {
	if r.Attach != nil {
		return r.Attach.Port
	}
	return r.Port
}

// Start is the configuration of the workers.
type Start struct {
	Cores []int          `json:"cores"` // cores of the workers; one worker runs on each core
	Sizes datapath.Sizes `json:"sizes"`
	// SpinUS is the time in µs for which a worker polls empty queues before the
	// worker sleeps.
	SpinUS int `json:"spin_us"`
	// Connections has the limits of the connection table; zero means the default.
	Connections conntrack.Sizes `json:"connections"`
}

// Attach describes a device. The back end of the device defines the format of Spec.
type Attach struct {
	Port uint32          `json:"port"` // number of the datapath port
	Name string          `json:"name"`
	Kind string          `json:"kind"` // kind of the device's back end: vhost-user, tap or af_xdp
	Spec json.RawMessage `json:"spec"`
	// Tunnel marks an uplink. The workers decapsulate the VXLAN frames that an uplink
	// receives.
	Tunnel bool `json:"tunnel,omitempty"`
}

// Reply is the answer to a Request.
type Reply struct {
	Error string          `json:"error,omitempty"` // reason why the engine refused the request; "": the request is done
	State json.RawMessage `json:"state,omitempty"`
	// Kept is one kept request, as control sent it. Only replies to OpRecall have it.
	Kept *Request `json:"kept,omitempty"`
	Last bool     `json:"last,omitempty"`
}
