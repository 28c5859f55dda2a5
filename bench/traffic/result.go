// SPDX-License-Identifier: Apache-2.0

package traffic

import "time"

// Result is the result of a measurement, without its warm-up. A frame that did not arrive counts as
// lost.
type Result struct {
	Spec   Spec   `json:"spec"`
	Server string `json:"server"` // address of the server
	// Seconds is how long the sender sent data.
	Seconds  float64 `json:"seconds"`
	Sent     Totals  `json:"sent"`
	Received Totals  `json:"received"`
	// Rates count the same bytes as Spec.Sizes. The receiver's rates are for the time until its last
	// frame if this is longer than Seconds.
	SentBitsPerSecond       float64 `json:"sent_bits_per_second"`
	ReceivedBitsPerSecond   float64 `json:"received_bits_per_second"`
	SentFramesPerSecond     float64 `json:"sent_frames_per_second"`
	ReceivedFramesPerSecond float64 `json:"received_frames_per_second"`
	// Streams has the results of the streams. The index is the stream's number.
	Streams []StreamResult `json:"streams"`
	// Latency is nil for data over TCP.
	Latency *Latency `json:"latency,omitempty"`
	// Local is the CPU time of the client, Remote the CPU time of the server.
	Local  CPU `json:"cpu_client"`
	Remote CPU `json:"cpu_server"`
	// SocketDrops is the number of frames that were lost because the receiver's socket buffer was
	// full.
	SocketDrops uint64     `json:"receiver_socket_drops"`
	Intervals   []Interval `json:"intervals,omitempty"`
}

// StreamResult is the result of one stream.
type StreamResult struct {
	Sent     Totals `json:"sent"`
	Received Totals `json:"received"`
	// Lost is the number of frames that were sent and did not arrive, or the number of requests
	// without a response.
	Lost       uint64 `json:"lost"`
	Duplicates uint64 `json:"duplicates"`
	Reordered  uint64 `json:"reordered"`
	Distance   uint64 `json:"reordering_distance"` // largest distance behind the highest sequence number
	// number of frames that arrived so late that they may be duplicates, or of responses that came
	// twice or after their request counted as lost
	Late        uint64  `json:"late"`
	JitterUS    float64 `json:"jitter_us"`
	Retransmits uint64  `json:"retransmits"`
}

// CPU is the CPU time of a process in seconds.
type CPU struct {
	User   float64 `json:"user_seconds"`
	System float64 `json:"system_seconds"`
}

// Interval is a part of the measurement, as counted by the client. From and To are seconds since the
// measurement's start; they are negative in the warm-up.
type Interval struct {
	From   float64 `json:"from_seconds"`
	To     float64 `json:"to_seconds"`
	Frames uint64  `json:"frames"`
	Bytes  uint64  `json:"bytes"`
}

// BitsPerSecond returns the data rate in the interval.
func (i Interval) BitsPerSecond() float64 { return float64(i.Bytes) * 8 / (i.To - i.From) }

// FramesPerSecond returns the frame rate in the interval.
func (i Interval) FramesPerSecond() float64 { return float64(i.Frames) / (i.To - i.From) }

// report is what one end, client or server, contributes to the Result.
type report struct {
	// Streams has the numbers of sent frames if this end is the sender, otherwise all other counters
	// of each stream.
	Streams []StreamResult `json:"streams,omitempty"`
	// Seconds is how long this end sent or received data.
	Seconds     float64  `json:"seconds,omitempty"`
	Latency     *Latency `json:"latency,omitempty"`
	CPU         CPU      `json:"cpu"`
	SocketDrops uint64   `json:"socket_drops,omitempty"`
}

func combine(s *Spec, sender, receiver *report) *Result {
	r := &Result{Spec: *s, Seconds: sender.Seconds, Latency: sender.Latency, SocketDrops: receiver.SocketDrops}
	if r.Latency == nil {
		r.Latency = receiver.Latency
	}
	for i := range s.Streams {
		st := sender.Streams[i]
		if s.Mode == Stream && i < len(receiver.Streams) {
			sent, again := st.Sent, st.Retransmits
			st = receiver.Streams[i]
			st.Sent, st.Retransmits = sent, again
			if s.Protocol == TCP {
				st.Received.Frames = 0 // TCP does not preserve the boundaries of blocks
			} else if st.Sent.Frames > st.Received.Frames+st.Late {
				st.Lost = st.Sent.Frames - st.Received.Frames - st.Late
			}
		}
		r.Streams = append(r.Streams, st)
		r.Sent.add(st.Sent)
		r.Received.add(st.Received)
	}
	span := r.Seconds
	if s.Mode == Stream {
		span = max(span, receiver.Seconds)
	}
	rate := func(n uint64, divisor float64) float64 {
		if divisor <= 0 {
			return 0
		}
		return float64(n) / divisor
	}
	r.SentBitsPerSecond, r.SentFramesPerSecond = rate(8*r.Sent.Bytes, r.Seconds), rate(r.Sent.Frames, r.Seconds)
	r.ReceivedBitsPerSecond, r.ReceivedFramesPerSecond = rate(8*r.Received.Bytes, span), rate(r.Received.Frames, span)
	return r
}

func (t *Totals) add(t2 Totals) {
	t.Frames += t2.Frames
	t.Bytes += t2.Bytes
}

// stopwatch measures the CPU time of this process.
type stopwatch struct{ user, system time.Duration }

func startWatch() stopwatch {
	u, s := usage()
	return stopwatch{u, s}
}

func (w stopwatch) read() CPU {
	u, s := usage()
	return CPU{User: (u - w.user).Seconds(), System: (s - w.system).Seconds()}
}
