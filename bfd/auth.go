// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"crypto/sha1"
	"crypto/subtle"
	"encoding/binary"
)

// Auth is the authentication of a session's packets (RFC 5880 section 6.7.4). Its zero value
// means none. Both ends have the same. The methods with passwords and MD5 are left out: the
// first shows the key to everybody on the way, the second is broken.
type Auth struct {
	Type  AuthType
	KeyID uint8
	Key   [KeyLength]byte // shorter keys end with zeros
}

// AuthType is the type of an authentication section (RFC 5880 section 4.1).
type AuthType uint8

// Types. A keyed session accepts a packet twice, a meticulous one never.
const (
	NoAuth              AuthType = 0
	KeyedSHA1           AuthType = 4
	MeticulousKeyedSHA1 AuthType = 5
)

const (
	// KeyLength is the longest key in bytes, the length of a SHA-1 sum. A longer one is refused.
	KeyLength = 20
	// MaxLength is the length of a packet with an authentication section in bytes.
	MaxLength  = Length + authLength
	authLength = 8 + KeyLength
)

// Encode writes packet p of session s to b, with the session's authentication, and returns its
// length. Each packet has a sequence number of its own.
func (s *Session) Encode(b *[MaxLength]byte, p Packet) int {
	if s.auth.Type == NoAuth {
		p.Put(b[:])
		return Length
	}
	p.Flags |= flagAuth
	p.Put(b[:])
	b[3] = MaxLength
	s.sequence++
	b[Length], b[Length+1], b[Length+2], b[Length+3] = byte(s.auth.Type), authLength, s.auth.KeyID, 0
	binary.BigEndian.PutUint32(b[Length+4:], s.sequence)
	sum := s.auth.sum(b)
	copy(b[Length+8:], sum[:])
	return MaxLength
}

// sum returns the SHA-1 sum of packet b with the key in place of the sum.
func (a *Auth) sum(b *[MaxLength]byte) [KeyLength]byte {
	keyed := *b
	copy(keyed[Length+8:], a.Key[:])
	return sha1.Sum(keyed[:])
}

// Authentic reports whether the packet in b, which Parse accepts, has the session's
// authentication, and remembers its sequence number. Without authentication, only a packet
// without it is authentic.
func (s *Session) Authentic(b []byte, now uint64) bool {
	if has := b[1]&flagAuth != 0; !has || s.auth.Type == NoAuth {
		return !has && s.auth.Type == NoAuth
	}
	if b[3] != MaxLength || len(b) < MaxLength {
		return false
	}
	p := (*[MaxLength]byte)(b)
	if p[Length] != byte(s.auth.Type) || p[Length+1] != authLength || p[Length+2] != s.auth.KeyID {
		return false
	}
	sequence, sum := binary.BigEndian.Uint32(p[Length+4:]), s.auth.sum(p)
	if !s.follows(sequence, now) || subtle.ConstantTimeCompare(sum[:], p[Length+8:]) != 1 {
		return false
	}
	s.heardSequence, s.sequenceNS = sequence, now
	return true
}

// follows reports whether a packet with this sequence number may come now. After a silence of
// twice the detection time any number may: the remote may have begun anew.
func (s *Session) follows(sequence uint32, now uint64) bool {
	if s.sequenceNS == 0 || now-s.sequenceNS >= 2*s.DetectionNS() {
		return true
	}
	ahead := sequence - s.heardSequence
	if ahead == 0 {
		return s.auth.Type == KeyedSHA1
	}
	return ahead <= 3*uint32(max(s.Multiplier, s.theirMultiplier))
}
