// Package engine is the process of the workers, seen from both sides: the
// messages it takes, the server that runs in it, and the client with which
// control starts, reaches and feeds it.
//
// The engine keeps what control sends it, descriptors included, and hands it
// all to the next control process that connects; control keeps duplicates and
// replays them to the next engine. Either can be killed.
package engine

import (
	"encoding/json"

	"weft/conntrack"
	"weft/datapath"
)

// The socket is SOCK_SEQPACKET in the state directory; one message a packet, a
// JSON Request with descriptors as SCM_RIGHTS, answered by one Reply. One
// control process is connected at a time: a new one replaces the old.
const (
	// SocketName is the engine's socket in the state directory, mode 0600.
	SocketName = "engine.sock"
	// MaxDescriptors is what the kernel passes in one message (SCM_MAX_FD).
	MaxDescriptors = 253
)

// Request operations.
const (
	// OpStart starts the workers: Start; descriptors: one region a worker, then
	// one command eventfd a worker, the one upcall eventfd, the region of the
	// connection table. Once only.
	OpStart = "start"
	// OpAttach opens a device and gives its queues to the workers: Attach, with
	// the device's descriptors. A port that is attached already is detached
	// first.
	OpAttach = "attach"
	// OpDetach takes a port from the workers and closes it: Port. Answered only
	// when no worker uses it any more; Reply.State is the device's State.
	OpDetach = "detach"
	// OpKeep keeps Key with Blob and all descriptors until OpForget of Key or a
	// further OpKeep of it, for the next control process.
	OpKeep   = "keep"
	OpForget = "forget"
	// OpRecall is answered by one Reply for each thing kept: the OpStart, the
	// ports attached, the keys kept, each with duplicates of its descriptors,
	// and then one with Reply.Last set.
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

// port is the port that a request is about, 0 for none.
func (r *Request) port() uint32 {
	if r.Attach != nil {
		return r.Attach.Port
	}
	return r.Port
}

// Start configures the workers.
type Start struct {
	Cores []int          `json:"cores"` // one worker a core
	Sizes datapath.Sizes `json:"sizes"`
	// SpinUS is how long a worker polls empty queues before it sleeps, in µs.
	SpinUS int `json:"spin_us"`
	// Connections are the limits of the connection table; zero: the defaults.
	Connections conntrack.Sizes `json:"connections"`
}

// Attach describes a device. Spec is the back end's own.
type Attach struct {
	Port uint32          `json:"port"` // datapath port number
	Name string          `json:"name"`
	Kind string          `json:"kind"` // vhost-user, tap, af_xdp
	Spec json.RawMessage `json:"spec"`
	// Tunnel marks an uplink: what it receives is VXLAN and is decapsulated.
	Tunnel bool `json:"tunnel,omitempty"`
}

// Reply answers a Request.
type Reply struct {
	Error string          `json:"error,omitempty"` // empty: done
	State json.RawMessage `json:"state,omitempty"`
	// Kept is one item of OpRecall, in the form in which it was sent.
	Kept *Request `json:"kept,omitempty"`
	Last bool     `json:"last,omitempty"`
}
