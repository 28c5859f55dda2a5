// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"crypto/sha1"
	"encoding/binary"
	"slices"
	"testing"
)

func keyed(kind AuthType, key string) Config {
	c := fast
	c.Auth = Auth{Type: kind, KeyID: 7}
	copy(c.Auth.Key[:], key)
	return c
}

// sign signs p as RFC 5880 section 6.7.4 says. It does not use Encode, so it can check it.
func sign(p *Packet, c Config, sequence uint32) []byte {
	b := make([]byte, Length)
	p.Put(b)
	b[1] |= 4
	b[3] = 52
	b = append(b, byte(c.Auth.Type), 28, c.Auth.KeyID, 0)
	b = binary.BigEndian.AppendUint32(b, sequence)
	sum := sha1.Sum(append(slices.Clone(b), c.Auth.Key[:]...))
	return append(b, sum[:]...)
}

// A session accepts only packets that have its key and a sequence number that may follow.
func TestAuthentic(t *testing.T) {
	for _, kind := range []AuthType{KeyedSHA1, MeticulousKeyedSHA1} {
		c := keyed(kind, "secret")
		var s Session
		s.Begin(c, mine, 1)
		now := uint64(1)
		want := func(event string, b []byte, want bool) {
			t.Helper()
			now += msec
			p, ok := Parse(b)
			if !ok {
				t.Fatalf("type %d, %s: not parsed", kind, event)
			}
			got := s.Authentic(b, now)
			if got != want {
				t.Errorf("type %d, %s: authentic %v, want %v", kind, event, got, want)
			}
			if got {
				s.Receive(&p, now)
			}
		}
		p := from(Down)
		want("first", sign(p, c, 1000), true)
		want("next", sign(p, c, 1001), true)
		want("the same again", sign(p, c, 1001), kind == KeyedSHA1)
		want("earlier", sign(p, c, 1000), false)
		want("12 ahead", sign(p, c, 1013), true)
		want("13 ahead", sign(p, c, 1026), false)
		want("another key", sign(p, keyed(kind, "Secret"), 1014), false)
		other := c
		other.Auth.KeyID++
		want("another number of the key", sign(p, other, 1014), false)
		other = c
		other.Auth.Type ^= 1
		want("another type", sign(p, other, 1014), false)
		changed := sign(p, c, 1014)
		changed[2]++
		want("a changed packet", changed, false)
		changed = sign(p, c, 1014)
		changed[len(changed)-1] ^= 1
		want("a changed sum", changed, false)
		var plain [Length]byte
		p.Put(plain[:])
		want("no authentication", plain[:], false)
		now += 2 * s.DetectionNS()
		want("a new beginning after silence", sign(p, c, 5), true)
	}
	var s Session
	s.Begin(fast, mine, 1)
	if s.Authentic(sign(from(Down), keyed(KeyedSHA1, "secret"), 1), 1) {
		t.Error("a session without authentication accepts an authenticated packet")
	}
}

// Encode writes packets that the other end accepts. Each has a new sequence number.
func TestEncode(t *testing.T) {
	for _, kind := range []AuthType{NoAuth, KeyedSHA1, MeticulousKeyedSHA1} {
		c := keyed(kind, "twenty bytes of key.")
		var a, b Session
		a.Begin(c, mine, 1)
		b.Begin(c, theirs, 1)
		var wire [MaxLength]byte
		for range 3 {
			n := a.Encode(&wire, a.Packet())
			if p, ok := Parse(wire[:n]); !ok || p.Mine != mine || !b.Authentic(wire[:n], 1) {
				t.Errorf("type %d: % x is refused", kind, wire[:n])
			}
		}
		if n := a.Encode(&wire, a.Packet()); kind != NoAuth && string(wire[:n]) != string(sign(pointer(a.Packet()), c, a.sequence)) {
			t.Errorf("type %d: % x is not as in RFC 5880", kind, wire[:n])
		}
	}
}

func pointer(p Packet) *Packet { return &p }
