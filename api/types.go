// SPDX-License-Identifier: Apache-2.0

// Package api defines the API between the daemon and its clients: HTTP with JSON
// bodies over a unix socket or vsock, under the paths below.
//
//	GET    /v1/show                          Show
//	POST   /v1/shutdown                      ShuttingDown
//	GET    /v1/ports[?name=NAME]             []Port, with statistics
//	POST   /v1/ports                         AddPort -> Port
//	PATCH  /v1/ports/NAME                    ModPort -> Port
//	DELETE /v1/ports/NAME[?if_exists=true]
//	GET    /v1/bridges                       []Bridge
//	POST   /v1/bridges                       AddBridge -> Bridge
//	PATCH  /v1/bridges[?bridge=NAME]         ModBridge -> Bridge
//	DELETE /v1/bridges/NAME[?if_exists=true]
//	POST   /v1/changes                       Changes
//	GET    /v1/flows[?match=MATCH][&sort=KEY...]    []Flow
//	POST   /v1/flows                         ChangeFlows -> FlowsChanged
//	POST   /v1/flows?op=OP                   a file of flows, as text/plain -> FlowsChanged
//	DELETE /v1/flows[?match=MATCH][&strict=true]    FlowsChanged
//	POST   /v1/flows/diff                    DiffFlows -> FlowsDiffer
//	GET    /v1/groups[?select=group_id=N]    []Group
//	POST   /v1/groups                        ChangeTable -> TableChanged
//	GET    /v1/meters[?select=meter=N]       []Meter
//	POST   /v1/meters                        ChangeTable -> TableChanged
//	GET    /v1/queues[?select=PORT]          []Queue
//	GET    /v1/tables                        []Table
//	POST   /v1/tables                        ModTable
//	GET    /v1/tlv-map                       TLVMap
//	POST   /v1/tlv-map                       ChangeTLVs
//	GET    /v1/macs                          []MAC
//	DELETE /v1/macs[?port=NAME]              MACsFlushed
//	POST   /v1/packet-out                    PacketOut -> PacketSent
//	GET    /v1/megaflows                     []Megaflow
//	GET    /v1/hottest?n=N&interval_ms=MS    []Hot
//	GET    /v1/trace?flow=FLOW[&ct_next=STATE]      Trace
//	GET    /v1/trace/live[?match=MATCH][&limit=N]   Captured, ...
//	GET    /v1/capture?port=NAME[&snap=N][&limit=N] Captured, ...; or drops=true[&port=NAME]
//	GET    /v1/monitor[?flows=true][&ports=true][&connections=true[&zone=N][&events=KIND,...]]
//	           [&match=MATCH][&initial=true]  Event, ...
//	GET    /v1/limits[?port=NAME]            []Limit
//	GET    /v1/routes[?port=NAME]            []Route
//	GET    /v1/log                           Log
//	POST   /v1/log                           Log -> Log; an empty setting stays
//	GET    /metrics                          Prometheus text
//
// conntrack.go lists the paths of connection tracking.
//
// Requests about flows, groups, meters, queues, tables, TLV maps, addresses, packet-outs,
// traces and monitors concern the first bridge, or with bridge=NAME the bridge NAME. With
// bridge=NAME, GET /v1/ports lists only the ports of this bridge. With names=false, flows,
// groups, megaflows, diffs and traces show ports by number.
//
// An answer marked "..." is a stream: one JSON value after the other, until the
// client closes the connection.
//
// An error is a JSON Error. Its status is 400 (the input is wrong; nothing changed),
// 403 (the peer's role does not allow the request), 404 (no such request), 408 (the body came
// too slowly; nothing changed), 413 (the body is too long), 500 (the request was right and
// failed), or 503 (try again: weftd starts, something delays the request, or the peer's share
// of connections, bodies or expensive requests is in use).
package api

// DefaultSocket is the path of the daemon's unix socket, unless another path is configured.
const DefaultSocket = "/run/weft/weft.sock"

// Error is the body of every response that is not a success. Its text is one line.
type Error struct {
	Error string `json:"error"`
}

// Log has the settings of the daemon's log.
type Log struct {
	Level  string `json:"level"`  // least severe messages: debug, info, warn or error
	Format string `json:"format"` // text, json or ovs
}

// ShuttingDown has the ids of the processes that a shutdown ends.
type ShuttingDown struct {
	PID       int `json:"pid"`
	EnginePID int `json:"engine_pid"` // 0 if no engine runs
}

// Show is the state of the daemon, its workers, ports and bridges.
type Show struct {
	Version string `json:"version"` // version of the control process
	// commit from which the control process was built; "unknown" if the build has not recorded it
	Commit    string `json:"commit"`
	Name      string `json:"name,omitempty"` // weftd --name
	PID       int    `json:"pid"`
	EnginePID int    `json:"engine_pid"` // 0 if no engine runs
	// EngineVersion and EngineCommit are the version and the commit of the engine, the process that
	// forwards frames. Both are "" if no engine runs, or if an engine of an earlier version does not
	// report them.
	EngineVersion string `json:"engine_version"`
	EngineCommit  string `json:"engine_commit"`
	StateDir      string `json:"state_dir"`
	// User is the user as which the control process runs. Capabilities are the effective Linux
	// capabilities of this process, with the names of capabilities(7).
	User         string   `json:"user"`
	Capabilities []string `json:"capabilities"`
	// MissingCapabilities are Linux capabilities that the control process lacks. Without them it
	// refuses some kinds of ports, or needs longer to start an engine.
	MissingCapabilities []MissingCapability `json:"missing_capabilities,omitempty"`
	UptimeS             float64             `json:"uptime_s"`
	Restarts            uint64              `json:"engine_restarts"` // number of engine restarts since control started
	Flows               int                 `json:"flows"`
	Megaflows           int                 `json:"megaflows"`
	MACs                int                 `json:"macs"`
	Workers             []Worker            `json:"workers"`
	Ports               []Port              `json:"ports"`
	Bridges             []Bridge            `json:"bridges,omitempty"`
	Central             *Central            `json:"central,omitempty"` // absent: the switch does not follow weft-central
}

// MissingCapability is a Linux capability that the control process lacks. The field For says what the
// process refuses, or does more slowly, without it.
type MissingCapability struct {
	Name string   `json:"name"`
	For  []string `json:"for"`
}

// Bridge is a bridge with a name. The first bridge has one only if weftd runs with --name.
type Bridge struct {
	Name           string `json:"name"`
	First          bool   `json:"first,omitempty"`           // the bridge of weftd --name
	OpenFlowSocket string `json:"openflow_socket,omitempty"` // path of the unix socket; "": none
	DatapathID     string `json:"datapath_id"`               // 16 hexadecimal digits
	FailMode       string `json:"fail_mode"`                 // secure or standalone
	// Controllers are the addresses of the controllers to which the bridge connects.
	Controllers []string `json:"controllers,omitempty"`
	// Configured is true if weftd's configuration sets the controllers and the fail mode.
	Configured bool `json:"configured,omitempty"`
	Ports      int  `json:"ports"`
	Flows      int  `json:"flows"`
}

// Fail modes: how a bridge forwards while it reaches no controller.
const (
	FailSecure     = "secure"     // keeps to its flows
	FailStandalone = "standalone" // forwards as a learning switch
)

// AddBridge is a request to add a bridge.
type AddBridge struct {
	Name        string   `json:"name"`
	DatapathID  string   `json:"datapath_id,omitempty"` // up to 16 hexadecimal digits; "": derived from the name
	FailMode    string   `json:"fail_mode,omitempty"`   // "": secure
	Controllers []string `json:"controllers,omitempty"` // tcp:HOST:PORT and ssl:HOST:PORT
	// MayExist accepts an existing bridge of this name, whatever its settings.
	MayExist bool `json:"may_exist,omitempty"`
	// Bare is true if the client adds all flows itself. Otherwise a standalone bridge without
	// controllers begins with the flow actions=normal.
	Bare bool `json:"bare,omitempty"`
}

// ModBridge is a request to change a bridge. Absent fields do not change.
type ModBridge struct {
	FailMode    string    `json:"fail_mode,omitempty"`
	Controllers *[]string `json:"controllers,omitempty"` // tcp:HOST:PORT and ssl:HOST:PORT; empty: none
	Bare        bool      `json:"bare,omitempty"`        // as of AddBridge
}

// Central is the state of the connection to weft-central, from which the switch gets its networks.
type Central struct {
	Address   string `json:"address"` // of the present or last session
	Connected bool   `json:"connected"`
	Revision  int64  `json:"revision"` // newest revision of weft-central's declaration that the switch has applied
	Nets      int    `json:"nets"`     // networks with a port of this switch
	// number of ports on other hosts whose addresses this switch knows
	Addresses int    `json:"addresses"`
	Asked     uint64 `json:"asked"`   // number of questions to weft-central: on which host is an address?
	Refused   uint64 `json:"refused"` // number of questions that were refused because their port or the switch exceeded a limit
	// number of Pulls: requests to weft-central to send at once what it has queued for the switch
	Pulls         uint64 `json:"pulls"`
	PullsAnswered uint64 `json:"pulls_answered"`
	// number of look-ups that were refused because they did not fit into a Pull, or because the switch
	// exceeded its rate of Pulls; Refused includes them
	PullsRefused uint64 `json:"pulls_refused"`
	// number of known addresses of large networks that the switch has asked for again after an
	// interruption
	Rechecks      uint64 `json:"rechecks"`
	Stale         uint64 `json:"stale"`             // number of these addresses that had gone meanwhile
	ReceivedBytes uint64 `json:"received_bytes"`    // of messages
	Trouble       string `json:"trouble,omitempty"` // error of the session or the last change, one line
}

// Worker has the CPU core and the counters of one worker thread.
type Worker struct {
	Core       int    `json:"core"`
	Passes     uint64 `json:"passes"` // number of passes that found a frame
	IdlePasses uint64 `json:"idle_passes"`
	// histogram of the time between the beginnings of two turns of the worker's polling loop. Entry i
	// counts times under (3+i%2)<<(i/2)>>2 ns.
	PassGaps      []uint64          `json:"pass_gaps,omitempty"`
	Sleeps        uint64            `json:"sleeps"`
	BusyNS        uint64            `json:"busy_ns"` // time in passes that found frames
	Frames        uint64            `json:"frames"`
	ExactHits     uint64            `json:"exact_hits"`
	MegaflowHits  uint64            `json:"megaflow_hits"`
	MasksSearched uint64            `json:"masks_searched"`
	Misses        uint64            `json:"misses"`
	Commands      uint64            `json:"commands"`
	Syscalls      uint64            `json:"syscalls"`
	HeartbeatNS   uint64            `json:"heartbeat_ns"` // CLOCK_MONOTONIC at the last pass
	Drops         map[string]uint64 `json:"drops"`        // by reason, without zeros

	CommandsRefused uint64 `json:"commands_refused"` // number of invalid Commands
	InstallsRefused uint64 `json:"installs_refused"` // number of megaflows refused because the cache had no room
	Batches         uint64 `json:"batches"`          // number of batches of received frames
	// ParkedQueues is the number of receive queues that the worker does not poll now, because they have
	// been empty for a while. The next frame of such a queue notifies the worker.
	ParkedQueues uint64 `json:"parked_queues"`
	// OffloadedFrames is the part of Frames that the kernel forwarded (offload=on)
	OffloadedFrames uint64 `json:"offloaded_frames"`
}

// Port is a port with its state.
type Port struct {
	// port number in the data path, unique in the switch; it does not change
	Number uint32 `json:"number"`
	// number of the port in flows of its bridge, if it differs from Number
	OpenFlow uint32            `json:"openflow,omitempty"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Bridge   string            `json:"bridge,omitempty"` // absent: the first bridge
	Local    bool              `json:"local,omitempty"`  // flows name the port LOCAL, number 65534
	Options  map[string]string `json:"options"`          // options as given to add-port
	// State is up, down, waiting or failed. Detail is the reason for the state.
	State  string `json:"state"`
	Detail string `json:"detail,omitempty"`
	// Mode is the mode of an af_xdp port: zerocopy, copy or generic. For a tap it is "read" if the
	// worker can find frames only by a read system call. Reason says why the port has this mode.
	Mode   string `json:"mode,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Remotes has the states of a tunnel port's remote endpoints, at most 256. Endpoints
	// that are down come first. RemotesOmitted is the number of endpoints left out.
	Remotes        []Remote `json:"remotes,omitempty"`
	RemotesOmitted int      `json:"remotes_omitted,omitempty"`
	// Link is the link of the port's network device; absent: the port has none, or it is in
	// another network namespace.
	Link *Link `json:"link,omitempty"`
	// Bond is the state of a port of type=bond.
	Bond *Bond `json:"bond,omitempty"`
	// Warnings has one line for each setting that can cause the loss of frames.
	Warnings []string  `json:"warnings,omitempty"`
	Stats    PortStats `json:"stats"`
}

// Link is the state of a network device's link, as the kernel and the driver report it.
type Link struct {
	MAC    string `json:"mac"`
	Mbps   uint32 `json:"mbps,omitempty"`   // speed in Mbit/s; absent: unknown
	Duplex string `json:"duplex,omitempty"` // half or full; absent: unknown
	// Medium is copper or fiber; absent: unknown.
	Medium     string `json:"medium,omitempty"`
	Negotiated bool   `json:"negotiated,omitempty"` // speed and duplex are negotiated with the peer
}

// Remote is a remote endpoint of a tunnel port.
type Remote struct {
	Address string `json:"address"`
	// State is up, down or waiting (for the answer to an ARP or neighbour request). Reason explains the
	// states waiting and down.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	Device string `json:"device,omitempty"` // device of the path
	MTU    int    `json:"mtu,omitempty"`    // of the path in bytes; 0: unknown
	BFD    *BFD   `json:"bfd,omitempty"`    // absent: the port does not have bfd=on
}

// Bond is the state of a bond and its members.
type Bond struct {
	Mode    string       `json:"mode"`
	Active  string       `json:"active,omitempty"` // absent: no member is enabled
	Members []BondMember `json:"members"`
	// LACP is the state of the bond's LACP; absent: it has none.
	LACP *LACP `json:"lacp,omitempty"`
}

// LACP is the state of a bond's Link Aggregation Control Protocol (IEEE 802.1AX).
type LACP struct {
	Active         bool   `json:"active"` // false: passive
	Fast           bool   `json:"fast"`
	Fallback       bool   `json:"fallback"`
	Negotiated     bool   `json:"negotiated"` // there is a partner
	System         string `json:"system"`     // MAC address
	SystemPriority uint16 `json:"system_priority"`
}

// LACPMember is the state of a member's LACP.
type LACPMember struct {
	// Status is current (the partner is heard), expired (the partner is no longer heard) or defaulted
	// (no partner is known).
	Status   string  `json:"status"`
	Attached bool    `json:"attached"` // the link belongs to the aggregation
	Actor    LACPEnd `json:"actor"`    // this end of the link
	Partner  LACPEnd `json:"partner"`  // the other end, as its last LACPDU describes it; zeros: unknown
	Sent     uint64  `json:"sent"`     // LACPDUs
	Received uint64  `json:"received"`
	// Bad counts received frames of slow protocols (IEEE 802.3 annex 57A) that are not LACPDUs. Markers
	// counts requests of the marker protocol. Excess counts received LACPDUs above 5 a second. Deferred
	// counts the LACPDUs that were sent late, because 3 had been sent within the same second.
	Bad      uint64 `json:"bad"`
	Markers  uint64 `json:"markers"`
	Excess   uint64 `json:"excess"`
	Deferred uint64 `json:"deferred"`
	// Expired counts how often Status became expired. Defaulted counts how often Status became defaulted.
	// Carrier counts how often the link went up or down.
	Expired   uint64 `json:"expired"`
	Defaulted uint64 `json:"defaulted"`
	Carrier   uint64 `json:"carrier"`
}

// LACPEnd describes one end of a link, as in an LACPDU.
type LACPEnd struct {
	System         string `json:"system"` // MAC address
	SystemPriority uint16 `json:"system_priority"`
	Key            uint16 `json:"key"`
	PortPriority   uint16 `json:"port_priority"`
	Port           uint16 `json:"port"`
	// State has the flags that are set: activity, timeout, aggregation, synchronized, collecting,
	// distributing, defaulted, expired.
	State []string `json:"state"`
}

// BondMember is a member of a bond.
type BondMember struct {
	Name    string `json:"name"`
	Enabled bool   `json:"enabled"`
	// MayEnable is true if the link is up and no command has disabled the member. Enabled takes the
	// same value after a delay, updelay or downdelay. DelayMS is the rest of this delay in
	// milliseconds.
	MayEnable bool  `json:"may_enable"`
	DelayMS   int64 `json:"delay_ms,omitempty"`
	Hashes    int   `json:"hashes"` // number of hash values, of 256, whose frames the member sends
	// LACP is the state of the member's LACP; absent: the bond has none.
	LACP *LACPMember `json:"lacp,omitempty"`
}

// BFD is the state of a BFD session with a remote (RFC 5880).
type BFD struct {
	// State and RemoteState are admin-down, down, init or up. Diagnostic and
	// RemoteDiagnostic are the reasons of the last changes to down.
	State            string `json:"state"`
	RemoteState      string `json:"remote_state"`
	Diagnostic       string `json:"diagnostic"`
	RemoteDiagnostic string `json:"remote_diagnostic"`
	// DetectionMS is the time in milliseconds after which the session is down if the remote is silent;
	// 0: the remote has never been heard. SilenceMS is the time since the remote's last packet;
	// absent: it has never been heard.
	DetectionMS int    `json:"detection_ms,omitempty"`
	SilenceMS   *int64 `json:"silence_ms,omitempty"`
	// Received and Sent count packets of the session. Refused counts packets from the remote that did
	// not belong to the session or came faster than its rate allows.
	Received uint64 `json:"received"`
	Sent     uint64 `json:"sent"`
	Refused  uint64 `json:"refused"`
	// RefusedReasons has the parts of Refused by reason, without zeros: wrong-discriminator, distant
	// (the packet has come through a router, despite bfd_one_hop=on), unauthentic, and doubtful
	// (somebody is guessing discriminators, and the packet was not repeated).
	RefusedReasons map[string]uint64 `json:"refused_reasons,omitempty"`
}

// PortStats has a port's counters, summed over all workers. They start at 0 when the port is added, or
// when the daemon gets a new state directory.
type PortStats struct {
	RxPackets uint64 `json:"rx_packets"`
	RxBytes   uint64 `json:"rx_bytes"`
	TxPackets uint64 `json:"tx_packets"`
	TxBytes   uint64 `json:"tx_bytes"`
	// RxDrops has the numbers of received frames that were sent to no port, by reason, without zeros.
	RxDrops map[string]uint64 `json:"rx_drops"`
	// TxDrops is the number of frames that should have been sent to the port but were dropped.
	// TxDropReasons divides this number by reason, without zeros.
	TxDrops       uint64            `json:"tx_drops"`
	TxDropReasons map[string]uint64 `json:"tx_drop_reasons"`
	// WorkerNS is the time in nanoseconds that all workers have spent on frames received on this port.
	// It counts from the time at which the running engine got the port's device. The time for a frame
	// from a tunnel counts for the port that received the outer packet.
	WorkerNS uint64 `json:"worker_ns"`
}

// AddPort is a request to add a port. Options are of the form KEY=VALUE, one of them type=KIND.
type AddPort struct {
	Name    string   `json:"name"`
	Options []string `json:"options"`
	// MayExist makes the request succeed if a port with this name and the same options
	// exists.
	MayExist bool `json:"may_exist,omitempty"`
	// Check makes the daemon only check the options: it adds no port and opens no device.
	Check bool `json:"check,omitempty"`
}

// ModPort is a request to change options of a port. Options are of the form KEY=VALUE; KEY= removes an
// option.
type ModPort struct {
	Options []string `json:"options"`
	// Check makes the daemon only check the options: it changes nothing.
	Check bool `json:"check,omitempty"`
}

// ChangeFlows is a request to change the flow tables. If a line is wrong, the daemon changes nothing.
type ChangeFlows struct {
	// Op is the operation: add, modify, modify-strict, delete, delete-strict or
	// replace. The operation replace deletes all flows that are not in the file. A line
	// of a file may begin with an operation of its own.
	Op string `json:"op"`
	// Text is one flow. If File is set, Text has one flow per line, and may have #
	// comments; errors then begin with the line number. The client sends a file as
	// text/plain, with Op in the query.
	Text string `json:"text"`
	File bool   `json:"-"`
}

// FlowsChanged has the number of flows that were added, changed or deleted.
type FlowsChanged struct {
	Flows int `json:"flows"`
	// Notes has at most ten warnings. Each is about a match field that was ignored because the match
	// lacks its prerequisite, such as eth_type. Warnings about a file begin with the line number.
	Notes []string `json:"notes,omitempty"`
}

// DiffFlows is a request to compare two files of flows. If Second is null, the daemon compares the
// file First with the flow tables.
type DiffFlows struct {
	First  string  `json:"first"`
	Second *string `json:"second"`
}

// FlowsDiffer has the lines of a comparison. A line that begins with "-" is a flow of the first file,
// or of the flow tables if there is only one file. A line with "+" is a flow of the other side. A flow
// that is the same on both sides has no line.
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
	IdleAgeS    float64 `json:"idle_age_s"`               // time in seconds since the flow's last frame, or since it was added
	Packets     uint64  `json:"packets"`
	Bytes       uint64  `json:"bytes"` // bytes of the frames before the flow's actions
	// Line is the whole flow, in the format of ovs-ofctl dump-flows.
	Line string `json:"line"`
}

// Megaflow is one entry of the workers' caches, with counters summed over the
// workers.
type Megaflow struct {
	Slot    uint32   `json:"slot"`
	Match   string   `json:"match"`
	Actions string   `json:"actions"`
	Packets uint64   `json:"packets"`
	Bytes   uint64   `json:"bytes"`
	UsedS   *float64 `json:"used_s"` // time in seconds since the last hit of this entry; null: never hit
	// InKernel is true if the kernel forwards the megaflow's frames. If the workers forward them
	// although the input port has offload=on, Worker says why.
	InKernel bool   `json:"in_kernel,omitempty"`
	Worker   string `json:"worker,omitempty"`
}

// LocalPort is the number that flows use for the port LOCAL (OFPP_LOCAL of OpenFlow 1.0).
const LocalPort = 0xfffe

// InFlows returns the number that the flows of the port's bridge use for the port.
func (p *Port) InFlows() uint32 {
	switch {
	case p.Local:
		return LocalPort
	case p.OpenFlow != 0:
		return p.OpenFlow
	}
	return p.Number
}
