// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"crypto/sha1"
	"crypto/subtle"
	"encoding/binary"
)

// Auth is the authentication of a session's packets (RFC 5880 section 6.7). The zero value means none.
// Both systems of a session must use the same type and key. Simple passwords are not supported, because
// everybody on the path can read them. Keyed MD5 is not supported, because MD5 is broken.
type Auth struct {
	Type  AuthType
	KeyID uint8
	Key   [KeyLength]byte // shorter keys end with zeros
}

// AuthType is the type of an authentication section (RFC 5880 section 4.1).
type AuthType uint8

// Types of authentication. With KeyedSHA1 a session accepts a repeated sequence number, with
// MeticulousKeyedSHA1 it does not (RFC 5880 section 6.7.4).
const (
	NoAuth              AuthType = 0
	KeyedSHA1           AuthType = 4
	MeticulousKeyedSHA1 AuthType = 5
)

const (
	// KeyLength is the length of the longest key in bytes. It is the length of a SHA-1 digest.
	KeyLength = 20
	// MaxLength is the length in bytes of a packet with an authentication section.
	MaxLength  = Length + authLength
	authLength = 8 + KeyLength
)

// Encode writes packet p of session s to b and returns its length in bytes. It adds the session's
// authentication, with a new sequence number for each packet.
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

// sum returns the SHA-1 digest for the packet b. It is computed over the packet with the key in the
// field for the digest (RFC 5880 section 6.7.4).
func (a *Auth) sum(b *[MaxLength]byte) [KeyLength]byte {
	keyed := *b
	copy(keyed[Length+8:], a.Key[:])
	return sha1.Sum(keyed[:])
}

// Authentic reports whether the packet in b has the session's authentication, and stores the packet's
// sequence number if it has. Parse must have accepted the packet. A session without authentication
// accepts only packets without authentication.
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

// follows reports whether the session accepts a packet with this sequence number at the time now, in
// ns. If the remote was silent for twice the detection time, every number is accepted, because the
// remote may have restarted (RFC 5880 section 6.8.1).
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
