// SPDX-License-Identifier: Apache-2.0

// Package engine implements the engine, which is the process of the workers: the messages
// between the control process and the engine, the server in the engine, and the control
// process's client.
//
// The engine keeps the requests of the control process with their descriptors, and returns
// them to the next control process. The control process keeps duplicates and sends them to
// the next engine. Therefore either process can be killed.
//
// Both processes:
//
//	messages.go     requests and replies
//	wire.go         messages and descriptors on a socket
//	memory.go       the memory that the control process and the workers share
//
// The engine process:
//
//	serve.go        the start of the process, and the lock of the state directory
//	turn.go         how a spare engine waits until it may serve
//	connections.go  the connection to the control process, which a newer one replaces
//	server.go       executes requests
//	pool.go         the workers
//	collect.go      garbage collection
//
// The control process:
//
//	rehearse.go     shows that a program can be the next engine
//	spawn.go        starts an engine or a spare engine
//	succeed.go      lets a spare engine take the place of a stuck one
//	connect.go      finds the engine that serves a state directory
//	client.go       sends requests
//	kill.go         ends an engine
package engine

import (
	"encoding/json"
	"fmt"

	"weft/conntrack"
	"weft/datapath"
	"weft/flowtable"
	"weft/internal/buildinfo"
)

// The messages cross a socket of type SOCK_SEQPACKET in the state directory. Each packet is one
// message: a Request or Reply in JSON, with descriptors as SCM_RIGHTS. A control process that connects
// replaces the earlier one.
const (
	// formerSocket is the socket name that engines of earlier versions use, see socketName.
	formerSocket = "engine.sock"
	// maxDescriptors is the largest number of descriptors in one message (SCM_MAX_FD). If a request has
	// more, OpMore requests before it bring the others.
	maxDescriptors = 253
	// maxRequestDescriptors is the largest number of descriptors of a request together with its OpMore
	// requests. It suffices for a guest's memory and 128 queue pairs with two eventfds a ring.
	maxRequestDescriptors = 1024
)

// socketName returns the name of an engine's socket in the state directory. Each engine has another
// name, because a spare engine makes its socket while another engine serves. The socket has mode 0600.
func socketName(pid int) string { return fmt.Sprintf("engine-%d.sock", pid) }

// Request operations.
const (
	// OpStart starts the workers with the configuration Start. Its descriptors are a region for each
	// worker, a command eventfd for each worker, the upcall eventfd, and the region of the connection
	// table. An engine accepts only one OpStart.
	OpStart = "start"
	// OpAttach opens the device that Attach describes, with the request's descriptors,
	// and assigns its queues to the workers. If the port has an attached device,
	// OpAttach replaces it.
	OpAttach = "attach"
	// OpDetach takes port Port from the workers and closes its device. The reply has
	// the device's State; from then on no worker uses the port.
	OpDetach = "detach"
	// OpKeep stores Blob and the descriptors under Key for the next control process,
	// until an OpForget or another OpKeep.
	OpKeep   = "keep"
	OpForget = "forget"
	// OpRecall asks for all kept requests. The engine answers with one Reply for each of them, with
	// duplicates of its descriptors: the OpStart, the attached ports, which have no descriptors, and
	// the requests OpKeep. A final Reply has Last set.
	OpRecall = "recall"
	// OpMore brings descriptors for the next request, which has more than maxDescriptors. The engine
	// replies to it. Engines of earlier versions refuse it.
	OpMore = "more"
	// OpHalt ends each worker after the current turn of its loop, when the worker handles no frame. It then
	// unlocks the state directory, so that the spare engine serves. The halted engine keeps its stored
	// requests until it is killed. If the connection to the control process ends, the halted engine ends
	// too, unless no other engine serves. Engines of earlier versions refuse this request.
	OpHalt = "halt"
	// OpServe brings another lock file to a spare engine, which then serves although a stuck engine holds
	// the old lock. The only answer is the empty Reply that an engine sends when it begins to serve.
	OpServe = "serve"
	// OpStop ends the engine after its reply.
	OpStop = "stop"
)

// Request is one message from the control process to the engine.
type Request struct {
	Op     string          `json:"op"`
	Start  *Start          `json:"start,omitempty"`
	Attach *Attach         `json:"attach,omitempty"`
	Port   uint32          `json:"port,omitempty"`
	Key    string          `json:"key,omitempty"`
	Blob   json.RawMessage `json:"blob,omitempty"`
}

// port returns the number of the port that the request is about; 0: none.
func (r *Request) port() uint32 {
	if r.Attach != nil {
		return r.Attach.Port
	}
	return r.Port
}

// Start is the configuration of the workers.
type Start struct {
	Cores []int          `json:"cores"` // cores of the workers, one for each
	Sizes datapath.Sizes `json:"sizes"`
	// SpinUS is the time in µs for which a worker polls empty queues before it
	// sleeps.
	SpinUS int `json:"spin_us"`
	// OptionsKey is the key of the hashes of Geneve options in megaflows. The next control
	// process takes it over from the running engine, and gives it to the next engine together
	// with the megaflows.
	OptionsKey flowtable.OptionsKey `json:"options_key"`
	// Connections has the limits of the connection table; 0: default.
	Connections conntrack.Sizes `json:"connections"`
}

// Attach describes a device. The device's kind defines the format of Spec.
type Attach struct {
	Port uint32          `json:"port"` // number of the datapath port
	Name string          `json:"name"`
	Kind string          `json:"kind"` // vhost-user, tap, af_xdp or af_packet
	Spec json.RawMessage `json:"spec"`
	// Tunnel marks an uplink. Its workers decapsulate the frames of tunnels that arrive on it.
	Tunnel bool `json:"tunnel,omitempty"`
}

// Reply is the answer to a Request.
type Reply struct {
	Error string          `json:"error,omitempty"` // reason of a refusal; "": success
	State json.RawMessage `json:"state,omitempty"`
	// Kept is a stored request, in an answer to OpRecall.
	Kept *Request `json:"kept,omitempty"`
	Last bool     `json:"last,omitempty"`
	// Halted is set in the last answer to OpRecall if OpHalt has ended the workers.
	Halted bool `json:"halted,omitempty"`
	// Waiting is set in a message that a spare engine sends without a request. It says that the spare
	// engine has entered the sandbox and prepared memory, and waits until the serving engine has ended. If
	// that wait is short, the message may come after the one that says that the engine serves.
	Waiting bool `json:"waiting,omitempty"`
	// Build is the engine's build. It is in the reply to OpStart, and in the last reply
	// to OpRecall.
	Build *buildinfo.Build `json:"build,omitempty"`
}

// Kept is a request that the engine process stores for the next control process (OpStart, OpAttach or
// OpKeep), with duplicates of its file descriptors. Whoever has the Kept owns the duplicates.
type Kept struct {
	Request Request
	FDs     []int
	// Parts has the rest of a device's state if one request cannot carry all of it, by number from 1 on.
	// The engine process stores each part as a request with a key of its own. The control process
	// that recalls the requests collects the parts of a device here.
	Parts map[int]*Kept
}

// CloseFDs closes the descriptors of k and of its Parts.
func (k *Kept) CloseFDs() {
	closeAll(k.FDs)
	k.FDs = nil
	for _, p := range k.Parts {
		p.CloseFDs()
	}
}
