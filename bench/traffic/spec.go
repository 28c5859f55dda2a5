// SPDX-License-Identifier: Apache-2.0

// Package traffic is the measuring part of the command weft bench: a client and a
// server. The client chooses streams of bytes (TCP), datagrams (UDP), raw frames (on
// a device or a vhost-user port), requests with responses, or connections with one
// request each.
//
// spec.go describes a measurement. In control.go, client.go and server.go both ends
// agree on it; session.go runs it. tcp.go, transport.go and rr.go move the data; udp.go,
// raw.go, device.go and guest.go are the transports, with the system calls in system.go.
// mix.go and schedule.go choose the sizes and times of frames; stamp.go and clock.go mark
// them. tally.go and histogram.go count. progress.go and result.go have the results.
package traffic

import (
	"errors"
	"fmt"
	"time"
)

// Values of Spec.Protocol and Spec.Mode.
const (
	TCP = "tcp"
	UDP = "udp"
	Raw = "raw"

	Stream  = "stream" // data in one direction, at the given rate
	Request = "rr"     // requests on one connection, one at a time
	Connect = "crr"    // a new connection for each request
)

// Limits of a Spec.
const (
	maxStreams   = 128
	maxBlock     = 1 << 20       // largest size in bytes of one write(2) to TCP
	maxDatagram  = 65507         // largest size in bytes of a UDP payload over IPv4
	maxFrame     = 9018          // largest size in bytes of a raw frame without checksum
	maxFlows     = 1 << 20       // largest number of flows of raw frames
	maxSeconds   = 24 * 3600     // greatest length of a measurement
	lostAfter    = time.Second   // time limit of a response over UDP or raw frames
	defaultBlock = 128 << 10     // default size in bytes of one write to TCP
	requestBytes = stampLen + 42 // default size of a request: the smallest raw frame, in bytes
)

// Spec describes one measurement. Client and server both check it.
type Spec struct {
	Protocol string `json:"protocol"`
	Mode     string `json:"mode"`
	// Reverse makes the server send the data.
	Reverse bool `json:"reverse,omitempty"`
	// Streams is the number of parallel connections or sockets. Raw frames have a
	// stream number instead, because they share the link.
	Streams int `json:"streams"`
	// The unit of sizes is bytes. A size counts one TCP write, one UDP payload, one raw
	// frame without checksum, or one request.
	Sizes Mix `json:"sizes"`
	// FrameSizes may replace Sizes for UDP. It has the sizes of Ethernet frames
	// without checksum.
	FrameSizes Mix `json:"frame_sizes,omitempty"`
	// Response is the size of a response in bytes; 0 means the size of the request.
	Response int `json:"response,omitempty"`
	// BitsPerSecond is the rate of each stream; 0 means no limit. It counts the same
	// bytes as Sizes.
	BitsPerSecond float64 `json:"bits_per_second,omitempty"`
	// PerSecond is the rate of each stream in frames, blocks or requests per second; 0
	// means no limit. It must be 0 if BitsPerSecond is set.
	PerSecond float64 `json:"per_second,omitempty"`
	// Seconds is the length of the measurement. Warmup is the length of the uncounted time before it.
	Seconds float64 `json:"seconds"`
	Warmup  float64 `json:"warmup,omitempty"`
	// Count ends each stream after this number of writes, frames or requests; 0 means
	// that Seconds ends it.
	Count uint64 `json:"count,omitempty"`
	// Flows is the number of pairs of UDP ports that raw frames use.
	Flows int `json:"flows,omitempty"`
	// SocketBuffer is the size of the socket buffers in bytes; 0 means the system's
	// default.
	SocketBuffer int `json:"socket_buffer,omitempty"`
}

// Check fills in defaults and checks all fields. An error names the option of the command weft bench
// that is wrong.
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
	case s.Streams < 1 || s.Streams > maxStreams:
		return fmt.Errorf("%d streams; expected 1 to %d", s.Streams, maxStreams)
	case !(s.Seconds > 0 && s.Seconds <= maxSeconds):
		return fmt.Errorf("a measurement of %g seconds; expected more than 0 and at most %d", s.Seconds, maxSeconds)
	case !(s.Warmup >= 0 && s.Warmup <= maxSeconds):
		return fmt.Errorf("a warm-up of %g seconds; expected 0 to %d", s.Warmup, maxSeconds)
	case !(s.BitsPerSecond >= 0 && s.BitsPerSecond < 1e13) || !(s.PerSecond >= 0 && s.PerSecond < 1e10):
		return errors.New("the rate is out of bounds")
	case s.BitsPerSecond > 0 && s.PerSecond > 0:
		return errors.New("a rate in bits and one in frames or requests; expected one of them")
	case s.BitsPerSecond > 0 && s.Mode != Stream:
		return errors.New("requests have a rate in requests a second, not in bits")
	case s.Response < 0 || s.Response > most || s.Response != 0 && s.Response < least:
		return fmt.Errorf("responses of %d bytes; expected %d to %d", s.Response, least, most)
	case s.Flows < 1 || s.Flows > maxFlows:
		return fmt.Errorf("%d flows; expected 1 to %d", s.Flows, maxFlows)
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

func (s *Spec) bounds() (lo, hi int) {
	switch s.Protocol {
	case UDP:
		return stampLen, maxDatagram
	case Raw:
		return frameHeaders + stampLen, maxFrame
	}
	return 1, maxBlock
}

func (s *Spec) largestFrame() int { return max(s.Sizes.largest(), s.Response, frameHeaders+stampLen) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
