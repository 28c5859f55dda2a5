// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"time"
)

// Certificates returns a directory with ca.pem of a new authority, and with cert.pem and
// key.pem, which the authority has signed.
func (l *Lab) Certificates() string {
	l.T.Helper()
	dir, err := os.MkdirTemp(l.Dir, "certs")
	if err != nil {
		l.T.Fatalf("lab: %v", err)
	}
	write := func(file, kind string, der []byte, err error) {
		l.T.Helper()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
		}
		if err != nil {
			l.T.Fatalf("lab: %s: %v", file, err)
		}
	}
	template := func(serial int64, name string) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.T.Fatalf("lab: %v", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		l.T.Fatalf("lab: %v", err)
	}
	ca := template(1, "authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	write("ca.pem", "CERTIFICATE", der, err)
	der, err = x509.CreateCertificate(rand.Reader, template(2, "peer"), ca, &key.PublicKey, caKey)
	write("cert.pem", "CERTIFICATE", der, err)
	der, err = x509.MarshalPKCS8PrivateKey(key)
	write("key.pem", "PRIVATE KEY", der, err)
	return dir
}
