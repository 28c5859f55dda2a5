// Package api is what the daemon and its clients say to each other: HTTP with
// JSON bodies over a unix socket (or vsock), under the paths below.
//
//	GET    /v1/show                          Show
//	GET    /v1/ports[?name=NAME]             []Port, with statistics
//	POST   /v1/ports                         AddPort -> Port
//	DELETE /v1/ports/NAME
//	POST   /v1/flows                         ChangeFlows -> FlowsChanged
//	POST   /v1/flows?op=OP                   a file of flows, as text/plain -> FlowsChanged
//	GET    /v1/flows[?match=MATCH]           []Flow
//	DELETE /v1/flows[?match=MATCH][&strict=true]  -> FlowsChanged
//	POST   /v1/flows/diff                    DiffFlows -> FlowsDiffer
//	GET    /v1/megaflows                     []Megaflow
//	GET    /v1/limits[?port=NAME]            []Limit
//	GET    /v1/macs                          []MAC
//	DELETE /v1/macs[?port=NAME]              MACsFlushed
//	POST   /v1/packet-out                    PacketOut -> PacketSent
//	GET    /v1/hottest?n=N&interval_ms=MS    []Hot
//	GET    /v1/trace?flow=FLOW[&ct_next=STATE]  Trace
//	GET    /v1/trace/live[?match=MATCH][&limit=N]   Captured, ...
//	GET    /v1/monitor[?flows=true][&ports=true][&connections=true[&zone=N][&events=KIND,...]]
//	           [&match=MATCH][&initial=true]  Event, ...
//	GET    /v1/capture?port=NAME[&snap=N][&limit=N] Captured, ...; or drops=true[&port=NAME]
//	GET    /metrics                          Prometheus text
//
// With names=false, flows, groups, megaflows, diffs and traces show ports by number.
//
// An answer with dots is a stream: values one after the other, as they come,
// until the client has enough.
//
// An error is a JSON Error with status 400 (the input is wrong: nothing
// changed), 403 (the peer's role does not allow it), 404 (no such thing), 413 (the body
// is too long), 500 (it was right and failed), or 503 (the peer's share of connections,
// bodies or expensive requests is in use: try again).
package api

// DefaultSocket is where the daemon listens unless told otherwise.
const DefaultSocket = "/run/weft/weft.sock"

// Error is the body of every answer that is not a success: one line.
type Error struct {
	Error string `json:"error"`
}

// Show is the state of the daemon.
type Show struct {
	Version   string   `json:"version"`
	PID       int      `json:"pid"`
	EnginePID int      `json:"engine_pid"` // 0 while there is none
	StateDir  string   `json:"state_dir"`
	UptimeS   float64  `json:"uptime_s"`
	Restarts  uint64   `json:"engine_restarts"` // of the engine, under this control process
	Flows     int      `json:"flows"`
	Megaflows int      `json:"megaflows"`
	MACs      int      `json:"macs"`
	Workers   []Worker `json:"workers"`
	Ports     []Port   `json:"ports"`
}

// Worker is one worker's core and counters.
type Worker struct {
	Core          int               `json:"core"`
	Passes        uint64            `json:"passes"` // that found at least one frame
	IdlePasses    uint64            `json:"idle_passes"`
	PassGaps      []uint64          `json:"pass_gaps,omitempty"` // passes by the time since the one before: entry i, less than (3+i%2)<<(i/2)>>2 ns
	Sleeps        uint64            `json:"sleeps"`
	BusyNS        uint64            `json:"busy_ns"` // in passes that found frames
	Frames        uint64            `json:"frames"`
	ExactHits     uint64            `json:"exact_hits"`
	MegaflowHits  uint64            `json:"megaflow_hits"`
	MasksSearched uint64            `json:"masks_searched"`
	Misses        uint64            `json:"misses"`
	Commands      uint64            `json:"commands"`
	Syscalls      uint64            `json:"syscalls"`
	HeartbeatNS   uint64            `json:"heartbeat_ns"` // CLOCK_MONOTONIC of the last pass
	Drops         map[string]uint64 `json:"drops"`        // by reason, zeros left out

	CommandsRefused uint64 `json:"commands_refused"` // of Commands: they made no sense
	InstallsRefused uint64 `json:"installs_refused"` // megaflows that found no room
	Batches         uint64 `json:"batches"`          // of frames received
}

// Port is a port with its state.
type Port struct {
	Number  uint32            `json:"number"` // as in flows; stable
	Name    string            `json:"name"`
	Type    string            `json:"type"`
	Options map[string]string `json:"options"` // as given when it was added
	// State is one word (up, down, waiting, failed); Detail says more.
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
	// Mode is af_xdp's: zerocopy, copy or generic; Reason why it is that one.
	Mode   string    `json:"mode,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Stats  PortStats `json:"stats"`
}

// PortStats are the sums over all workers since the port was added, or the
// daemon's state was made.
type PortStats struct {
	RxPackets uint64            `json:"rx_packets"`
	RxBytes   uint64            `json:"rx_bytes"`
	TxPackets uint64            `json:"tx_packets"`
	TxBytes   uint64            `json:"tx_bytes"`
	RxDrops   map[string]uint64 `json:"rx_drops"` // by reason, zeros left out
	TxDrops   uint64            `json:"tx_drops"`
}

// AddPort asks for a port. Options are KEY=VALUE words, type=... among them.
type AddPort struct {
	Name    string   `json:"name"`
	Options []string `json:"options"`
}

// ChangeFlows changes the flow tables: wholly or, when any line is wrong, not
// at all.
type ChangeFlows struct {
	// Op is add, modify, modify-strict, delete or delete-strict; a line of a file
	// may have one of its own before it. With replace, the flows of Text, a file,
	// are all there will be.
	Op string `json:"op"`
	// Text is one flow or, with File, one flow a line with # comments; errors
	// then begin with their line's number. A file is sent as it is: text/plain,
	// Op in the query.
	Text string `json:"text"`
	File bool   `json:"-"`
}

// FlowsChanged is the number of flows added, changed or deleted.
type FlowsChanged struct {
	Flows int `json:"flows"`
	// Notes are what was left out of the flows as they were written, as with
	// ovs-ofctl: a match field whose prerequisites the match lacks. Of a file each
	// begins with its line's number; there are ten at most.
	Notes []string `json:"notes,omitempty"`
}

// DiffFlows asks how the flows of two files differ or, with Second null, how
// those of First differ from the tables.
type DiffFlows struct {
	First  string  `json:"first"`
	Second *string `json:"second"`
}

// FlowsDiffer has a line for each flow of one side alone, or different there: -
// before one of the first file, or of the tables, + before one of the other.
type FlowsDiffer struct {
	Lines []string `json:"lines"`
}

// Flow is a flow with its statistics.
type Flow struct {
	Table       uint8   `json:"table"`
	Priority    int     `json:"priority"`
	Cookie      uint64  `json:"cookie"`
	Match       string  `json:"match"`
	Actions     string  `json:"actions"`
	DurationS   float64 `json:"duration_s"`
	IdleTimeout uint16  `json:"idle_timeout_s,omitempty"` // 0: none
	HardTimeout uint16  `json:"hard_timeout_s,omitempty"` // 0: none
	IdleAgeS    float64 `json:"idle_age_s"`               // since its last frame, or its making
	Packets     uint64  `json:"packets"`
	Bytes       uint64  `json:"bytes"` // of frames as matched
	// Line is all of it in the format of ovs-ofctl dump-flows.
	Line string `json:"line"`
}

// Megaflow is one entry of the workers' caches, with the sums over workers.
type Megaflow struct {
	Slot    uint32   `json:"slot"`
	Match   string   `json:"match"`
	Actions string   `json:"actions"`
	Packets uint64   `json:"packets"`
	Bytes   uint64   `json:"bytes"`
	UsedS   *float64 `json:"used_s"` // since the last hit; null: never
}
