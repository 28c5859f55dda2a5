// SPDX-License-Identifier: Apache-2.0

package central

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"weft/central/store"
)

// authority is the certificate authority of one run.
type authority struct {
	key    *ecdsa.PrivateKey
	parent *x509.Certificate
	pool   *x509.CertPool
	serial int64
}

func newAuthority() (*authority, error) {
	a := &authority{pool: x509.NewCertPool()}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	template := a.template("ca")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		return nil, err
	}
	if a.parent, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.pool.AddCert(a.parent)
	return a, nil
}

func (a *authority) template(name string) *x509.Certificate {
	a.serial++
	return &x509.Certificate{SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
}

// issue returns a new certificate and its key for a common name.
func (a *authority) issue(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, a.template(name), a.parent, &key.PublicKey, a.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func (a *authority) client(name string) (*tls.Config, error) {
	c, err := a.issue(name)
	return &tls.Config{Certificates: []tls.Certificate{c}, RootCAs: a.pool, MinVersion: tls.VersionTLS13}, err
}

// etcd reads certificates only from files.
func (a *authority) files(dir, name string) (store.TLSFiles, error) {
	f := store.TLSFiles{Certificate: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key"), CA: filepath.Join(dir, "ca.crt")}
	c, err := a.issue(name)
	if err != nil {
		return f, err
	}
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		return f, err
	}
	for _, p := range []struct {
		path, kind string
		der        []byte
	}{{f.Certificate, "CERTIFICATE", c.Certificate[0]}, {f.Key, "PRIVATE KEY", key}, {f.CA, "CERTIFICATE", a.parent.Raw}} {
		if err := os.WriteFile(p.path, pem.EncodeToMemory(&pem.Block{Type: p.kind, Bytes: p.der}), 0o600); err != nil {
			return f, err
		}
	}
	return f, nil
}
