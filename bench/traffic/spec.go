// SPDX-License-Identifier: Apache-2.0

// Package traffic is the measuring part of weft bench: a server and a client. The
// client decides what is sent in which direction: streams of bytes (TCP), datagrams
// (UDP), frames (raw, on a device or as the guest of a vhost-user port), requests
// with responses, or connections with one request each.
//
// The files, in the order of a measurement: spec.go says what is measured. control.go
// is the connection over which client and server agree; client.go and server.go are
// its two ends. session.go runs the part that both ends share. tcp.go, lane.go and
// rr.go move the data; udp.go, raw.go, device.go and guest.go are the lanes. tally.go
// and histogram.go count, and result.go has the result.
package traffic

import (
	"errors"
	"fmt"
	"time"
)

// Protocols and modes of a Spec.
const (
	TCP = "tcp"
	UDP = "udp"
	Raw = "raw"

	Stream  = "stream" // one direction, at the given rate
	Request = "rr"     // a request, its response, the next request
	Connect = "crr"    // a connection for each request
)

// Limits of a Spec.
const (
	MaxStreams   = 128
	MaxBlock     = 1 << 20       // bytes of one write to TCP
	MaxDatagram  = 65507         // bytes of a UDP payload over IPv4
	MaxFrame     = 9018          // bytes of a raw frame without checksum
	MaxFlows     = 1 << 20       // flows of raw frames
	MaxSeconds   = 24 * 3600     // length of a measurement
	lostAfter    = time.Second   // time after which an unanswered UDP or raw request is lost
	defaultBlock = 128 << 10     // bytes of one write to TCP
	requestBytes = stampLen + 42 // default size of a request: the payload of a frame of 64 bytes
)

// Spec describes one measurement. The client checks it, and the server checks it
// again.
type Spec struct {
	Protocol string `json:"protocol"`
	Mode     string `json:"mode"`
	// Reverse makes the server send.
	Reverse bool `json:"reverse,omitempty"`
	// Streams is the number of parallel connections or sockets; for raw frames, of
	// numbers in the frames.
	Streams int `json:"streams"`
	// Sizes in bytes: of writes (TCP), payloads (UDP), frames without checksum (raw)
	// or requests.
	Sizes Mix `json:"sizes"`
	// FrameSizes are Sizes given as frames without checksum. The client subtracts the
	// headers of its address family. UDP only.
	FrameSizes Mix `json:"frame_sizes,omitempty"`
	// Response is the size of a response in bytes; 0: the size of the request.
	Response int `json:"response,omitempty"`
	// BitsPerSecond of each stream, counted as Sizes counts; 0: no limit.
	BitsPerSecond float64 `json:"bits_per_second,omitempty"`
	// PerSecond is the number of frames, blocks or requests a second of each stream;
	// 0: no limit. It excludes BitsPerSecond.
	PerSecond float64 `json:"per_second,omitempty"`
	// Seconds is the length of the measurement, Warmup the length of the uncounted
	// time before it.
	Seconds float64 `json:"seconds"`
	Warmup  float64 `json:"warmup,omitempty"`
	// Count ends each stream after so many writes, datagrams, frames or requests; 0:
	// Seconds does.
	Count uint64 `json:"count,omitempty"`
	// Flows is the number of UDP port pairs of raw frames.
	Flows int `json:"flows,omitempty"`
	// SocketBuffer is in bytes; 0: the system's default.
	SocketBuffer int `json:"socket_buffer,omitempty"`
}

// Check reports what is wrong with a Spec, in the words of the command's options, and
// fills in defaults.
func (s *Spec) Check() error {
	s.defaults()
	if err := s.checkKind(); err != nil {
		return err
	}
	least, most := s.bounds()
	for _, sizes := range []Mix{s.Sizes, s.FrameSizes} {
		if err := sizes.within(least, most); err != nil {
			return err
		}
	}
	switch {
	case s.Streams < 1 || s.Streams > MaxStreams:
		return fmt.Errorf("%d streams; expected 1 to %d", s.Streams, MaxStreams)
	case !(s.Seconds > 0 && s.Seconds <= MaxSeconds):
		return fmt.Errorf("a measurement of %g seconds; expected more than 0 and at most %d", s.Seconds, MaxSeconds)
	case !(s.Warmup >= 0 && s.Warmup <= MaxSeconds):
		return fmt.Errorf("a warm-up of %g seconds; expected 0 to %d", s.Warmup, MaxSeconds)
	case !(s.BitsPerSecond >= 0 && s.BitsPerSecond < 1e13) || !(s.PerSecond >= 0 && s.PerSecond < 1e10):
		return errors.New("the rate is out of bounds")
	case s.BitsPerSecond > 0 && s.PerSecond > 0:
		return errors.New("a rate in bits and one in frames or requests; expected one of them")
	case s.BitsPerSecond > 0 && s.Mode != Stream:
		return errors.New("requests have a rate in requests a second, not in bits")
	case s.Response < 0 || s.Response > most || s.Response != 0 && s.Response < least:
		return fmt.Errorf("responses of %d bytes; expected %d to %d", s.Response, least, most)
	case s.Flows < 1 || s.Flows > MaxFlows:
		return fmt.Errorf("%d flows; expected 1 to %d", s.Flows, MaxFlows)
	case s.SocketBuffer < 0 || s.SocketBuffer > 1<<30:
		return fmt.Errorf("a socket buffer of %d bytes; expected at most 1 GiB", s.SocketBuffer)
	}
	return nil
}

func (s *Spec) checkKind() error {
	switch {
	case s.Protocol != TCP && s.Protocol != UDP && s.Protocol != Raw:
		return fmt.Errorf("protocol %q; expected tcp, udp or raw", s.Protocol)
	case s.Mode != Stream && s.Mode != Request && s.Mode != Connect:
		return fmt.Errorf("mode %q; expected stream, rr or crr", s.Mode)
	case s.Mode == Connect && s.Protocol != TCP:
		return errors.New("connect and close needs TCP")
	case s.Reverse && s.Mode != Stream:
		return errors.New("requests go from client to server; they cannot be reversed")
	case s.Flows > 1 && s.Protocol != Raw:
		return errors.New("flows are of raw frames; datagrams and connections have streams")
	case s.FrameSizes != nil && s.Protocol != UDP:
		return errors.New("sizes of frames need UDP or raw frames; TCP cuts its stream itself")
	case s.Protocol == Raw && s.Response != 0:
		return errors.New("raw requests are answered by themselves; the length of a response cannot be set")
	}
	return nil
}

func (s *Spec) defaults() {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&s.Protocol, TCP)
	set(&s.Mode, Stream)
	if s.Streams == 0 {
		s.Streams = 1
	}
	if s.Flows == 0 {
		s.Flows = 1
	}
	if s.Sizes == nil && s.FrameSizes == nil {
		switch {
		case s.Protocol == Raw:
			s.Sizes = Mix{{Size: 64, Count: 1}}
		case s.Mode != Stream:
			s.Sizes = Mix{{Size: requestBytes, Count: 1}}
		case s.Protocol == UDP:
			s.Sizes = Mix{{Size: 1400, Count: 1}}
		default:
			s.Sizes = Mix{{Size: defaultBlock, Count: 1}}
		}
	}
}

// bounds returns the limits of Sizes in bytes.
func (s *Spec) bounds() (least, most int) {
	switch s.Protocol {
	case UDP:
		return stampLen, MaxDatagram
	case Raw:
		return frameHeaders + stampLen, MaxFrame
	}
	return 1, MaxBlock
}

// largestFrame returns the room in bytes that a received frame needs.
func (s *Spec) largestFrame() int { return max(s.Sizes.largest(), s.Response, frameHeaders+stampLen) }

// seconds converts seconds to a duration.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
