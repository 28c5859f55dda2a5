// SPDX-License-Identifier: Apache-2.0

package ofconn

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Certificates has the paths of the files in PEM that authenticate OpenFlow connections over TLS. Both
// ends of a connection need a certificate of the authority in CA.
type Certificates struct {
	Key, Cert, CA string
	// Bootstrap stores the authority of the first controller in CA if this file is missing, as
	// bootstrap_ca_cert of Open vSwitch's table SSL does.
	Bootstrap bool
}

// LoadTLS reads ca.pem, cert.pem and key.pem from a directory.
func LoadTLS(dir string) (*tls.Config, error) {
	return Certificates{Key: filepath.Join(dir, "key.pem"), Cert: filepath.Join(dir, "cert.pem"), CA: filepath.Join(dir, "ca.pem")}.Load()
}

// Load reads the files. The caller loads them again for each connection, so that new certificates need
// no restart.
func (c Certificates) Load() (*tls.Config, error) {
	authority, err := os.ReadFile(c.CA)
	bootstrap := c.Bootstrap && errors.Is(err, fs.ErrNotExist)
	if err != nil && !bootstrap {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !bootstrap && !pool.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s: expected certificates in PEM", c.CA)
	}
	cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", c.Cert, c.Key, err)
	}
	check := func(s tls.ConnectionState) error { return verify(s, pool) }
	if bootstrap {
		check = func(s tls.ConnectionState) error { return store(s, c.CA) }
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12,
		// Certificates of controllers seldom name the controller's address.
		// VerifyConnection therefore checks only the authority, as Open vSwitch does.
		InsecureSkipVerify: true,
		VerifyConnection:   check,
	}, nil
}

func verify(s tls.ConnectionState, pool *x509.CertPool) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the peer has no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		between.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	return err
}

// store writes the last certificate of the peer's chain to a new file, if the certificate is one of an
// authority. It always returns an error, so that the connection ends and the next one is verified.
func store(s tls.ConnectionState, path string) error {
	if len(s.PeerCertificates) == 0 {
		return errors.New("the peer has no certificate")
	}
	last := s.PeerCertificates[len(s.PeerCertificates)-1]
	if err := last.CheckSignatureFrom(last); err != nil {
		return fmt.Errorf("the controller sends no certificate of its authority, so %s cannot be made: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	if err := errors.Join(pem.Encode(f, &pem.Block{Type: "CERTIFICATE", Bytes: last.Raw}), f.Close()); err != nil {
		os.Remove(path) // an incomplete file would refuse every controller
		return err
	}
	return fmt.Errorf("the controller's authority %s is now in %s; connecting again", last.Subject, path)
}
