package traffic

import "time"

// Result is what a measurement found. Counts are of the measured time alone,
// without the warm-up, and exact: what is missing was lost, not overlooked.
type Result struct {
	Spec   Spec   `json:"spec"`
	Server string `json:"server"` // its address
	// Seconds that the sender sent.
	Seconds  float64 `json:"seconds"`
	Sent     Totals  `json:"sent"`
	Received Totals  `json:"received"`
	// SentBitsPerSecond over Seconds; ReceivedBitsPerSecond until the
	// last that came, if that was later. Both of what the sizes count, see Spec.
	SentBitsPerSecond       float64 `json:"sent_bits_per_second"`
	ReceivedBitsPerSecond   float64 `json:"received_bits_per_second"`
	SentFramesPerSecond     float64 `json:"sent_frames_per_second"`
	ReceivedFramesPerSecond float64 `json:"received_frames_per_second"`
	// Streams in their order.
	Streams []StreamResult `json:"streams"`
	// Latency is nil where none was measured: streams over TCP.
	Latency *Latency `json:"latency,omitempty"`
	// Local and Remote are client and server.
	Local  CPU `json:"cpu_client"`
	Remote CPU `json:"cpu_server"`
	// SocketDrops are those of Lost that reached the receiver's socket.
	SocketDrops uint64     `json:"receiver_socket_drops"`
	Intervals   []Interval `json:"intervals,omitempty"`
}

// StreamResult is one stream's part.
type StreamResult struct {
	Sent     Totals `json:"sent"`
	Received Totals `json:"received"`
	// Lost were sent and did not come, of requests: were not answered.
	Lost        uint64  `json:"lost"`
	Duplicates  uint64  `json:"duplicates"`
	Reordered   uint64  `json:"reordered"`
	Distance    uint64  `json:"reordering_distance"` // furthest behind the highest number seen
	Late        uint64  `json:"late"`                // too late to tell from duplicates
	JitterUS    float64 `json:"jitter_us"`
	Retransmits uint64  `json:"retransmits"`
}

// CPU is processor time that one end's process took.
type CPU struct {
	User   float64 `json:"user_seconds"`
	System float64 `json:"system_seconds"`
}

// Interval is what the client saw in a part of the measurement: what it sent or,
// of a reverse one, received. Negative times are of the warm-up.
type Interval struct {
	From   float64 `json:"from_seconds"`
	To     float64 `json:"to_seconds"`
	Frames uint64  `json:"frames"`
	Bytes  uint64  `json:"bytes"`
}

// BitsPerSecond of the interval.
func (i Interval) BitsPerSecond() float64 { return float64(i.Bytes) * 8 / (i.To - i.From) }

// FramesPerSecond of the interval.
func (i Interval) FramesPerSecond() float64 { return float64(i.Frames) / (i.To - i.From) }

// report is one end's part of the result.
type report struct {
	// Streams have what this end knows: a sender what it sent, a receiver the rest.
	Streams []StreamResult `json:"streams,omitempty"`
	// Seconds that this end sent or received.
	Seconds     float64  `json:"seconds,omitempty"`
	Latency     *Latency `json:"latency,omitempty"`
	CPU         CPU      `json:"cpu"`
	SocketDrops uint64   `json:"socket_drops,omitempty"`
}

// combine makes the result of both ends' reports. Who asks counts the answers too.
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
				st.Received.Frames = 0 // blocks do not arrive as such
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
	rate := func(n uint64, over float64) float64 {
		if over <= 0 {
			return 0
		}
		return float64(n) / over
	}
	r.SentBitsPerSecond, r.SentFramesPerSecond = rate(8*r.Sent.Bytes, r.Seconds), rate(r.Sent.Frames, r.Seconds)
	r.ReceivedBitsPerSecond, r.ReceivedFramesPerSecond = rate(8*r.Received.Bytes, span), rate(r.Received.Frames, span)
	return r
}

func (t *Totals) add(more Totals) {
	t.Frames += more.Frames
	t.Bytes += more.Bytes
}

// stopwatch measures processor time.
type stopwatch struct{ user, system time.Duration }

func startWatch() stopwatch {
	u, s := usage()
	return stopwatch{u, s}
}

func (w stopwatch) read() CPU {
	u, s := usage()
	return CPU{User: (u - w.user).Seconds(), System: (s - w.system).Seconds()}
}
