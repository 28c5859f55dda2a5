// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// recheck is the shortest time between two checks whether the certificate files have changed. TLS
// handshakes start these checks.
const recheck = time.Second

// Files has the paths of the PEM files of a certificate's holder. The file CA may have several
// certificates, so that an operator can replace the CA step by step.
type Files struct{ Certificate, Key, CA string }

// FilesIn returns the paths of the files in a directory, under their standard names.
func FilesIn(dir string) Files {
	return Files{filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")}
}

// Save writes a certificate, its key and the CA's certificate to the files. cert and ca are in DER.
// The file Certificate gets both certificates, because a server sends both to clients that know only
// the digest of the CA.
func (f Files) Save(cert []byte, key crypto.Signer, ca []byte) error {
	if err := os.MkdirAll(filepath.Dir(f.Key), 0o700); err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(
		writeSecret(f.Key, encodePEM("PRIVATE KEY", der)),
		writeFile(f.Certificate, append(encodePEM("CERTIFICATE", cert), encodePEM("CERTIFICATE", ca)...), 0o644),
		writeFile(f.CA, encodePEM("CERTIFICATE", ca), 0o644))
}

// Keys has the certificate, the key and the CA of one holder. It reads the files again when they have
// changed.
type Keys struct {
	files Files

	mu      sync.Mutex
	checked time.Time
	raw     [3][]byte
	cert    *tls.Certificate
	ca      *x509.CertPool
}

// Load reads the files and returns their contents as Keys.
func Load(files Files) (*Keys, error) {
	k := &Keys{files: files}
	return k, k.reload()
}

// reload reads the files again. If certificate and key do not belong together, because the files are
// being replaced, reload returns an error and k keeps the old ones.
func (k *Keys) reload() error {
	var raw [3][]byte
	for i, f := range []string{k.files.Certificate, k.files.Key, k.files.CA} {
		var err error
		if raw[i], err = os.ReadFile(f); err != nil {
			return err
		}
	}
	if k.cert != nil && bytes.Equal(raw[0], k.raw[0]) && bytes.Equal(raw[1], k.raw[1]) && bytes.Equal(raw[2], k.raw[2]) {
		return nil
	}
	cert, err := tls.X509KeyPair(raw[0], raw[1])
	if err != nil {
		return fmt.Errorf("%s and %s: %w", k.files.Certificate, k.files.Key, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw[2]) {
		return fmt.Errorf("%s has no certificate", k.files.CA)
	}
	k.raw, k.cert, k.ca = raw, &cert, pool
	return nil
}

func (k *Keys) current() (*tls.Certificate, *x509.CertPool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.checked) > recheck {
		k.checked = time.Now()
		_ = k.reload()
	}
	return k.cert, k.ca
}

// Identity returns the name and the role in the holder's certificate.
func (k *Keys) Identity() (name string, role Role, err error) {
	cert, _ := k.current()
	return Identity(cert.Leaf)
}

// Certificate returns the holder's present certificate.
func (k *Keys) Certificate() *x509.Certificate {
	cert, _ := k.current()
	return cert.Leaf
}

// Renewal returns the time at which the certificate should be renewed. A third of its validity is then
// left, but at most a third of DefaultLife. The second limit is for renewed certificates, which Renew
// makes valid from the beginning of the old one.
func (k *Keys) Renewal() time.Time { return renewal(k.Certificate()) }

func renewal(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-min(c.NotAfter.Sub(c.NotBefore), DefaultLife) / 3)
}

// Renew makes a new key, gets a certificate for it from the function sign, and saves both in the
// files. addresses are the IP addresses or DNS names that the request for the certificate has.
func (k *Keys) Renew(addresses []string, sign func(csr []byte) (cert, ca []byte, err error)) error {
	key, csr, err := NewKey(addresses...)
	if err != nil {
		return err
	}
	cert, ca, err := sign(csr)
	if err != nil {
		return err
	}
	if err := k.files.Save(cert, key, ca); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reload()
}

// LargeRecords is the value of tls.Config.DynamicRecordSizingDisabled in a central. By default,
// package tls sends the first 128 KiB of a connection in records of 1.2 KiB, with one system call
// each. A host hardly receives more than that in hours.
const LargeRecords = true

// Server returns the TLS settings of a server. The server accepts clients without a certificate,
// because they may want to enrol. So the caller must check the client's identity at each call. The
// server refuses certificates of other CAs.
func (k *Keys) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			cert, ca := k.current()
			return &tls.Config{
				MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
				Certificates: []tls.Certificate{*cert}, ClientCAs: ca, ClientAuth: tls.VerifyClientCertIfGiven,
				DynamicRecordSizingDisabled: LargeRecords,
			}, nil
		},
	}
}

// Client returns the TLS settings of a client that connects to a central.
func (k *Keys) Client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			cert, _ := k.current()
			return cert, nil
		},
		// Go's own verification is off, because it uses a fixed CA. The function
		// VerifyConnection verifies the server's certificate with the CA that the
		// files contain now.
		InsecureSkipVerify: true, //nolint:gosec
		VerifyConnection: func(s tls.ConnectionState) error {
			_, ca := k.current()
			return verifyServer(s, ca)
		},
	}
}

// Enrol returns the TLS settings of a client that has only a token. The client accepts a server only
// if the server's certificate is signed by the CA whose digest is in the token.
func (t Token) Enrol() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		InsecureSkipVerify: true, //nolint:gosec // verified below, against the token's CA
		VerifyConnection: func(s tls.ConnectionState) error {
			for _, c := range s.PeerCertificates {
				if sha256.Sum256(c.Raw) == t.ca {
					pool := x509.NewCertPool()
					pool.AddCert(c)
					return verifyServer(s, pool)
				}
			}
			return errors.New("the server does not show the CA of the token: it is another fleet's, or somebody is in between")
		},
	}
}

// verifyServer returns an error unless the server's certificate is signed by the CA and has the role
// central. It does not compare the server's address with the certificate, so that operators can change
// the addresses of centrals.
func verifyServer(s tls.ConnectionState, ca *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the server shows no certificate")
	}
	leaf, between := s.PeerCertificates[0], x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: ca, Intermediates: between}); err != nil {
		return err
	}
	if name, role, err := Identity(leaf); err != nil || role != Central {
		return fmt.Errorf("the server %s has a certificate of the role %q; expected central", name, role)
	}
	return nil
}
