// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"strings"
)

// tokenPrefix is the first part of every token. It identifies the version of the format.
const tokenPrefix = "weft1"

// Token lets a new host, central or person get one certificate. Its text is weft1.SECRET.DIGEST.
// DIGEST is that of the CA's certificate, so the holder of the token can recognize the fleet's CA
// before it has a certificate.
type Token struct {
	secret string
	ca     [sha256.Size]byte
}

// NewToken makes a token for the CA with this digest.
func NewToken(ca [sha256.Size]byte) Token { return Token{rand.Text(), ca} }

// ParseToken parses the text of a token. Error texts do not contain the token, because it is secret.
func ParseToken(text string) (Token, error) {
	parts := strings.Split(strings.TrimSpace(text), ".")
	if len(parts) != 3 || parts[0] != tokenPrefix || len(parts[1]) != len(rand.Text()) {
		return Token{}, errors.New("this is no token; expected weft1.SECRET.DIGEST as weft central invite prints it")
	}
	for _, c := range parts[1] {
		if !(c >= 'A' && c <= 'Z' || c >= '2' && c <= '7') {
			return Token{}, errors.New("the token is damaged; copy it again")
		}
	}
	digest, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || len(digest) != sha256.Size {
		return Token{}, errors.New("the token's digest of the CA is damaged; copy the token again")
	}
	return Token{parts[1], [sha256.Size]byte(digest)}, nil
}

// Text returns the complete text of the token, which is secret.
func (t Token) Text() string {
	return tokenPrefix + "." + t.secret + "." + base64.RawURLEncoding.EncodeToString(t.ca[:])
}

// String returns a text without the secret, so that logs do not contain it.
func (t Token) String() string { return tokenPrefix + "....." }

// GoString returns the same as String, so that the verb %#v does not print the secret.
func (t Token) GoString() string { return t.String() }

// ID returns a digest of the token's secret. The store uses it as the name of the invitation, so that
// the store does not contain the secret.
func (t Token) ID() string {
	sum := sha256.Sum256([]byte(t.secret))
	return hex.EncodeToString(sum[:])
}

// CA returns the digest of the CA's certificate.
func (t Token) CA() [sha256.Size]byte { return t.ca }
