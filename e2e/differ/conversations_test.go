// SPDX-License-Identifier: Apache-2.0

package differ

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// step is one step of a conversation: frames that a port receives. A step that answers makes
// its frames from the last frame of the conversation that left Open vSwitch, and sends them at
// the port where that frame left. So an answer to a translated frame has the translated
// addresses.
type step struct {
	talk   int // conversation
	port   int
	frames [][]byte
	answer func(frame []byte) []byte // makes the step's frames; nil: the field frames has them
	// follows is true if the step is skipped unless the last answer of its conversation was given,
	// and while a connection is half open. Open vSwitch accepts an ACK before the SYN ACK, which
	// is one of the known differences.
	follows bool
	text    string
}

func (s *step) String() string {
	if s.answer != nil {
		return "answer: " + s.text
	}
	text := ""
	for _, f := range s.frames {
		text += fmt.Sprintf("port %d: %x  # %s\n", s.port, f, s.text)
	}
	return text[:len(text)-1]
}

// conversations returns the steps of a few conversations in random order. The steps of each
// conversation keep their order.
func conversations(r *rand.Rand) (steps []step) {
	var talks [][]step
	for talk := range 2 + r.IntN(3) {
		t := conversation(r)
		for i := range t {
			t[i].talk = talk
		}
		talks = append(talks, t)
	}
	for len(talks) > 0 {
		i := r.IntN(len(talks))
		steps = append(steps, talks[i][0])
		if talks[i] = talks[i][1:]; len(talks[i]) == 0 {
			talks = append(talks[:i], talks[i+1:]...)
		}
	}
	return steps
}

func conversation(r *rand.Rand) []step {
	from, to := 1+r.IntN(ports), 1+r.IntN(ports)
	if from == to {
		to = from%ports + 1
	}
	six := r.IntN(3) == 0
	h := newHeader(r, from, to, six)
	port := from
	if r.IntN(8) == 0 {
		port = 1 + r.IntN(ports)
	}
	switch r.IntN(8) {
	case 0, 1, 2:
		return handshake(r, h, port)
	case 3, 4:
		return datagrams(r, h, port)
	case 5:
		return echoes(r, h, port)
	case 6:
		return fragmented(r, h, port)
	}
	if six {
		answer := header{from: to, to: from, src: h.dst, dst: h.src}
		return []step{
			{port: port, frames: [][]byte{discovery(h, false)}, text: "neighbour solicitation"},
			{port: to, frames: [][]byte{discovery(answer, true)}, text: "neighbour advertisement"},
		}
	}
	question, answer := h, header{from: to, to: from, src: h.dst, dst: h.src}
	question.outer, question.broadcast = nil, true
	return []step{
		{port: port, frames: [][]byte{arp(question, 1)}, text: "ARP request"},
		{port: to, frames: [][]byte{arp(answer, 2)}, text: "ARP reply"},
	}
}

// handshake returns the steps of a TCP connection with some faults.
func handshake(r *rand.Rand, h header, port int) (steps []step) {
	src, dst := uint16(pick(r, 1024, 2000, 33000)), uint16(pick(r, 80, 443, 22))
	const mine, yours = 1000, 5000
	data := bytes.Repeat([]byte("weft"), 1+r.IntN(20))
	client := func(text string, flags byte, seq, acked uint32, payload []byte) {
		f := h.ip(protoTCP, 1, 0, false, h.finish(protoTCP, tcp(src, dst, flags, seq, acked, payload)))
		steps = append(steps, step{port: port, frames: [][]byte{f}, text: text, follows: true})
	}
	server := func(text string, flags byte, seq, acked uint32, payload []byte) {
		steps = append(steps, step{text: text, answer: func(frame []byte) []byte {
			return reply(frame, func(proto byte, old []byte) []byte {
				if proto != protoTCP {
					return nil
				}
				return tcp(binary.BigEndian.Uint16(old[2:]), binary.BigEndian.Uint16(old), flags, seq, acked, payload)
			})
		}})
	}
	n := uint32(len(data))
	client("SYN", syn, mine, 0, nil)
	server("SYN ACK", syn|ack, yours, mine+1, nil)
	client("ACK", ack, mine+1, yours+1, nil)
	client("data", psh|ack, mine+1, yours+1, data)
	server("data", psh|ack, yours+1, mine+1+n, data)
	if r.IntN(4) == 0 {
		client("RST", rst|ack, mine+1+n, yours+1+n, nil)
		client("data after RST", psh|ack, mine+1+n, yours+1+n, data)
	} else {
		client("FIN", fin|ack, mine+1+n, yours+1+n, nil)
		server("FIN", fin|ack, yours+1+n, mine+2+n, nil)
		client("last ACK", ack, mine+2+n, yours+2+n, nil)
	}
	switch r.IntN(6) {
	case 0: // a lost frame
		i := 2 + r.IntN(len(steps)-2)
		steps = append(steps[:i], steps[i+1:]...)
	case 1: // the beginning only
		steps = steps[:1+r.IntN(len(steps)-1)]
	case 2: // a frame twice
		i := r.IntN(len(steps))
		steps = append(steps[:i+1], steps[i:]...)
	case 3: // from the middle on
		steps = steps[2:]
	case 4:
		steps = append(steps, unreachable(r))
	}
	for i := 0; i < len(steps) && steps[i].answer == nil; i++ {
		steps[i].follows = false
	}
	return steps
}

// unreachable returns a step that answers the last frame with an ICMP error.
func unreachable(r *rand.Rand) step {
	quoted := pick(r, 28, 48, 128)
	return step{text: fmt.Sprint("ICMP error, quotes ", quoted), answer: func(frame []byte) []byte {
		return complaint(frame, max(quoted, map[bool]int{true: 48}[isIPv6(frame)]))
	}}
}

func isIPv6(frame []byte) bool { v, ok := parse(frame); return ok && v.src.Is6() }

func datagrams(r *rand.Rand, h header, port int) (steps []step) {
	src, dst := uint16(pick(r, 1024, 2000, 53)), uint16(pick(r, 53, 123))
	for i := range 1 + r.IntN(3) {
		payload := bytes.Repeat([]byte{byte(i)}, r.IntN(60))
		steps = append(steps, step{port: port, text: "datagram", frames: [][]byte{h.ip(protoUDP, 2, 0, false, h.finish(protoUDP, udp(src, dst, payload)))}})
		switch r.IntN(3) {
		case 0:
			steps = append(steps, unreachable(r))
		case 1:
			steps = append(steps, step{text: "datagram", answer: func(frame []byte) []byte {
				return reply(frame, func(proto byte, old []byte) []byte {
					if proto != protoUDP {
						return nil
					}
					return udp(binary.BigEndian.Uint16(old[2:]), binary.BigEndian.Uint16(old), payload)
				})
			}})
		}
	}
	return steps
}

func echoes(r *rand.Rand, h header, port int) (steps []step) {
	six := h.src.Is6()
	proto := byte(protoICMP)
	if six {
		proto = protoICMPv6
	}
	for i := range 1 + r.IntN(2) {
		s := echo(six, false, 77, uint16(i), []byte("weft"))
		steps = append(steps, step{port: port, text: "echo request", frames: [][]byte{h.ip(proto, 3, 0, false, h.finish(proto, s))}},
			step{text: "echo reply", answer: func(frame []byte) []byte {
				return reply(frame, func(got byte, old []byte) []byte {
					if got != proto {
						return nil
					}
					return echo(six, true, binary.BigEndian.Uint16(old[4:]), binary.BigEndian.Uint16(old[6:]), old[8:])
				})
			}})
	}
	return steps
}

// fragmented returns the steps of a datagram in fragments, in or out of order.
func fragmented(r *rand.Rand, h header, port int) []step {
	datagram := h.finish(protoUDP, udp(1024, uint16(pick(r, 53, 123)), bytes.Repeat([]byte("fragment"), 6+r.IntN(4))))
	size := pick(r, 16, 24, 40)
	id := uint16(r.IntN(65536))
	var frames [][]byte
	for at := 0; at < len(datagram); at += size {
		end := min(at+size, len(datagram))
		frames = append(frames, h.ip(protoUDP, id, at, end < len(datagram), datagram[at:end]))
	}
	switch r.IntN(4) {
	case 0:
		frames[0], frames[len(frames)-1] = frames[len(frames)-1], frames[0]
	case 1:
		frames = frames[:len(frames)-1]
	}
	return []step{{port: port, frames: frames, text: "fragment"}}
}
