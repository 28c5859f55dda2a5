// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"weft/api"
	"weft/conntrack"
	"weft/control/limits"
	"weft/internal/clock"
)

// Numbers has the values that the metrics show.
type Numbers struct {
	Show api.Show
	// TableFlows has the number of flows in each table, by table number.
	TableFlows map[uint8]int
	// Refused counts misses (frames without a megaflow) that were forwarded without installing one.
	// NotLearned counts flows that a learn action could not add because of a limit.
	Refused, NotLearned uint64
	// Answers has, for each miss, the time until the control process has answered it.
	Answers Histogram
	// Died, WorkerHung and ServerHung count replaced engines by reason.
	Died, WorkerHung, ServerHung uint64
	// Hangs has the number of engines that hung while they used a port. The key is the port number.
	Hangs map[uint32]uint64
	// RequestsGivenUp counts API requests that took too long.
	RequestsGivenUp uint64
	// Captures and Monitors are the numbers of sessions. CapturesLost counts the frames
	// that captures have lost.
	Captures, Monitors int
	CapturesLost       uint64
	Connections        *ConnectionNumbers // nil: there is no table
	// GuestRequests counts the requests of guests that the host has answered itself, by result.
	GuestRequests map[string]uint64
	Limits        []api.Limit
}

// Histogram counts durations.
type Histogram struct {
	Count   uint64
	SumS    float64
	AtMostS map[float64]uint64 // number of durations of at most the key, in seconds
}

// ConnectionNumbers has counters of the connection table.
type ConnectionNumbers struct {
	Now        int
	EventsLost uint64
	conntrack.Counters
}

// MetricsHandler serves the metrics in Prometheus's text format. It also serves metrics of the Go
// runtime and of the control process.
func MetricsHandler(numbers func() *Numbers) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(&collector{numbers}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

type collector struct{ numbers func() *Numbers }

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("weft_"+name, help, labels, nil)
}

var (
	metricUp        = describe("engine_up", "1 while an engine runs.")
	metricRestarts  = describe("engine_restarts_total", "Engines that died and were replaced.")
	metricFlows     = describe("flows", "Flows in all tables.")
	metricMegaflows = describe("megaflows", "Megaflows in the workers' caches.")
	metricMACs      = describe("macs", "Addresses learned by normal.")
	metricRefused   = describe("megaflows_refused_total", "Misses executed singly for want of room in the caches.")
	metricUnlearned = describe("flows_not_learned_total", "Flows of learn actions for which there was no room.")
	metricAnswers   = describe("miss_answer_seconds", "Time from a miss, when a worker holds the frame, to control's answer.")
	metricRequests  = describe("guest_requests_total", "Requests of guests to the host itself, such as DHCP, by result: answered, refused, taken, ignored, limited.", "result")
	metricTable     = describe("table_flows", "Flows in a table that has any.", "table")
	metricBuild     = describe("build_info", "1, labelled with version and commit of the control process and of the engine.", "version", "commit", "engine_version", "engine_commit")
	metricUptime    = describe("uptime_seconds", "Time since the control process started.")
	metricTaps      = describe("captures", "Captures and live traces at work.")
	metricTapsLost  = describe("capture_lost_frames_total", "Frames that captures, those at work included, could not take.")
	metricMonitors  = describe("monitors", "Clients that follow the flow tables.")

	metricPortInfo    = describe("port_info", "1, labelled with number, state and, of af_xdp, mode.", "port", "type", "number", "state", "mode")
	metricPortUp      = describe("port_up", "1 if the port forwards.", "port", "type")
	metricPortPackets = describe("port_packets_total", "Frames, by direction.", "port", "type", "direction")
	metricPortBytes   = describe("port_bytes_total", "Bytes of frames, by direction.", "port", "type", "direction")
	metricPortWorker  = describe("port_worker_seconds_total", "Time that the workers spent on frames received on the port. Begins at 0 with each engine.", "port", "type")
	metricPortDrops   = describe("port_drops_total", "Frames lost, by direction and reason.", "port", "type", "direction", "reason")

	metricWorkerBusy    = describe("worker_busy_seconds_total", "Time in passes that found frames.", "worker", "core")
	metricWorkerPasses  = describe("worker_passes_total", "Passes, by whether they found frames.", "worker", "core", "found")
	metricWorkerSleeps  = describe("worker_sleeps_total", "Times the worker slept.", "worker", "core")
	metricWorkerBatches = describe("worker_batches_total", "Batches of frames received.", "worker", "core")
	metricWorkerFrames  = describe("worker_frames_total", "Frames received.", "worker", "core")
	metricWorkerLookups = describe("worker_lookups_total", "Lookups, by what answered: exact, megaflow, miss.", "worker", "core", "result")
	metricWorkerMasks   = describe("worker_masks_searched_total", "Masks tried in megaflow lookups.", "worker", "core")
	metricWorkerOrders  = describe("worker_commands_total", "Commands of control, by result: done, refused.", "worker", "core", "result")
	metricWorkerNoRoom  = describe("worker_installs_refused_total", "Megaflows that a worker had no room for.", "worker", "core")
	metricWorkerBeat    = describe("worker_heartbeat_age_seconds", "Time since the last pass began; half a second at most while it is sound.", "worker", "core")
	metricWorkerKernel  = describe("worker_offloaded_frames_total", "Frames that the kernel forwarded, part of the frames received.", "worker", "core")
	metricWorkerParked  = describe("worker_parked_queues", "Receive queues that have been empty for a while and are not polled.", "worker", "core")
	metricWorkerCalls   = describe("worker_syscalls_total", "System calls made.", "worker", "core")
	metricWorkerDrops   = describe("worker_drops_total", "Frames dropped, by reason.", "worker", "core", "reason")
)

// Describe implements prometheus.Collector. It sends nothing, because the labels change at run time.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	n := c.numbers()
	s := &n.Show
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	gauge(metricUp, oneIf(s.EnginePID != 0))
	gauge(metricFlows, float64(s.Flows))
	gauge(metricMegaflows, float64(s.Megaflows))
	gauge(metricMACs, float64(s.MACs))
	counter(metrics, metricRestarts, float64(s.Restarts))
	counter(metrics, metricReplaced, float64(n.Died), "died")
	counter(metrics, metricReplaced, float64(n.WorkerHung), "worker_hung")
	counter(metrics, metricReplaced, float64(n.ServerHung), "server_hung")
	counter(metrics, metricGivenUp, float64(n.RequestsGivenUp))
	counter(metrics, metricRefused, float64(n.Refused))
	counter(metrics, metricUnlearned, float64(n.NotLearned))
	for result, count := range n.GuestRequests {
		counter(metrics, metricRequests, float64(count), result)
	}
	metrics <- prometheus.MustNewConstHistogram(metricAnswers, n.Answers.Count, n.Answers.SumS, n.Answers.AtMostS)
	gauge(metricBuild, 1, s.Version, s.Commit, s.EngineVersion, s.EngineCommit)
	gauge(metricUptime, s.UptimeS)
	gauge(metricTaps, float64(n.Captures))
	counter(metrics, metricTapsLost, float64(n.CapturesLost))
	gauge(metricMonitors, float64(n.Monitors))
	collectConnections(n.Connections, metrics)
	collectCentral(s.Central, metrics)
	for table, flows := range n.TableFlows {
		gauge(metricTable, float64(flows), strconv.Itoa(int(table)))
	}
	limits.Collect(n.Limits, metrics)
	for i := range s.Ports {
		p := &s.Ports[i]
		gauge(metricPortInfo, 1, p.Name, p.Type, strconv.FormatUint(uint64(p.Number), 10), p.State, p.Mode)
		gauge(metricPortUp, oneIf(p.State == stateUp), p.Name, p.Type)
		collectPort(metrics, p)
		collectRemotes(metrics, p)
		counter(metrics, metricHangs, float64(n.Hangs[p.Number]), p.Name, p.Type)
	}
	now := clock.Monotonic()
	for i := range s.Workers {
		w := &s.Workers[i]
		gauge(metricWorkerParked, float64(w.ParkedQueues), strconv.Itoa(i), strconv.Itoa(w.Core))
		gauge(metricWorkerBeat, float64(now-min(now, w.HeartbeatNS))/1e9, strconv.Itoa(i), strconv.Itoa(w.Core))
		collectWorker(metrics, strconv.Itoa(i), &s.Workers[i])
	}
}

// stateUp is the state of a port that forwards, as in api.Port.State.
const stateUp = "up"

func counter(metrics chan<- prometheus.Metric, desc *prometheus.Desc, v float64, labels ...string) {
	metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, v, labels...)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func collectPort(metrics chan<- prometheus.Metric, p *api.Port) {
	counter(metrics, metricPortPackets, float64(p.Stats.RxPackets), p.Name, p.Type, "rx")
	counter(metrics, metricPortPackets, float64(p.Stats.TxPackets), p.Name, p.Type, "tx")
	counter(metrics, metricPortBytes, float64(p.Stats.RxBytes), p.Name, p.Type, "rx")
	counter(metrics, metricPortBytes, float64(p.Stats.TxBytes), p.Name, p.Type, "tx")
	counter(metrics, metricPortWorker, float64(p.Stats.WorkerNS)/1e9, p.Name, p.Type)
	for reason, n := range p.Stats.RxDrops {
		counter(metrics, metricPortDrops, float64(n), p.Name, p.Type, "rx", reason)
	}
	for reason, n := range p.Stats.TxDropReasons {
		counter(metrics, metricPortDrops, float64(n), p.Name, p.Type, "tx", reason)
	}
}

func collectWorker(metrics chan<- prometheus.Metric, i string, w *api.Worker) {
	core := strconv.Itoa(w.Core)
	counter(metrics, metricWorkerBusy, float64(w.BusyNS)/1e9, i, core)
	counter(metrics, metricWorkerPasses, float64(w.Passes), i, core, "frames")
	counter(metrics, metricWorkerPasses, float64(w.IdlePasses), i, core, "nothing")
	counter(metrics, metricWorkerSleeps, float64(w.Sleeps), i, core)
	counter(metrics, metricWorkerFrames, float64(w.Frames), i, core)
	counter(metrics, metricWorkerKernel, float64(w.OffloadedFrames), i, core)
	counter(metrics, metricWorkerBatches, float64(w.Batches), i, core)
	counter(metrics, metricWorkerOrders, float64(w.Commands-min(w.CommandsRefused, w.Commands)), i, core, "done")
	counter(metrics, metricWorkerOrders, float64(w.CommandsRefused), i, core, "refused")
	counter(metrics, metricWorkerNoRoom, float64(w.InstallsRefused), i, core)
	counter(metrics, metricWorkerLookups, float64(w.ExactHits), i, core, "exact")
	counter(metrics, metricWorkerLookups, float64(w.MegaflowHits), i, core, "megaflow")
	counter(metrics, metricWorkerLookups, float64(w.Misses), i, core, "miss")
	counter(metrics, metricWorkerMasks, float64(w.MasksSearched), i, core)
	counter(metrics, metricWorkerCalls, float64(w.Syscalls), i, core)
	for reason, n := range w.Drops {
		counter(metrics, metricWorkerDrops, float64(n), i, core, reason)
	}
}

var (
	metricConnections        = describe("connections", "Connections that are tracked.")
	metricConnectionsCreated = describe("connections_created_total", "Connections that were committed.")
	metricConnectionsEnded   = describe("connections_ended_total", "Connections that ended, by what ended them.", "by")
	metricConnectionsRefused = describe("connections_refused_total", "Connections that could not be committed, by what was missing.", "missing")
	metricConnectionsLost    = describe("connection_events_lost_total", "Events of connections that a monitor asked for and for which there was no room.")
)

// collectConnections sends the metrics about tracked connections, or nothing if c is nil.
func collectConnections(c *ConnectionNumbers, metrics chan<- prometheus.Metric) {
	if c == nil {
		return
	}
	metrics <- prometheus.MustNewConstMetric(metricConnections, prometheus.GaugeValue, float64(c.Now))
	counter(metrics, metricConnectionsCreated, float64(c.Created))
	counter(metrics, metricConnectionsEnded, float64(c.Expired), "timeout")
	counter(metrics, metricConnectionsEnded, float64(c.Evicted), "eviction")
	counter(metrics, metricConnectionsEnded, float64(c.Flushed), "flush")
	counter(metrics, metricConnectionsEnded, float64(c.Replaced), "successor")
	counter(metrics, metricConnectionsRefused, float64(c.RefusedLimit), "room")
	counter(metrics, metricConnectionsRefused, float64(c.RefusedNAT), "translation")
	counter(metrics, metricConnectionsLost, float64(c.EventsLost))
}

var (
	metricReplaced = describe("engines_replaced_total", "Engines that were replaced, by reason: died, worker_hung, server_hung.", "reason")
	metricGivenUp  = describe("requests_given_up_total", "Requests of the API that were answered with an error because they took too long.")
	metricHangs    = describe("port_hangs_total", "Engines that hung and for which the port was held: it was in hand.", "port", "type")
)
