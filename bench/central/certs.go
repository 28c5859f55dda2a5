// SPDX-License-Identifier: Apache-2.0

package central

import (
	"crypto/tls"
	"crypto/x509"
	"path/filepath"

	"weft/central/pki"
	"weft/central/store"
	"weft/e2e/lab"
)

// authority is the certificate authority of one test run.
type authority struct {
	ca   *pki.CA
	pool *x509.CertPool
}

func newAuthority() *authority {
	ca := lab.Must(pki.NewCA("bench"))
	cert := lab.Must(x509.ParseCertificate(ca.DER()))
	a := &authority{ca: ca, pool: x509.NewCertPool()}
	a.pool.AddCert(cert)
	return a
}

// client returns the TLS settings of a gRPC client. It issues a new certificate for this client.
func (a *authority) client(name string, role pki.Role) *tls.Config {
	key, csr, err := pki.NewKey()
	lab.Check(err)
	der := lab.Must(a.ca.Sign(csr, name, role, pki.DefaultLife))
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, RootCAs: a.pool,
		ServerName: pki.CentralName, MinVersion: tls.VersionTLS13}
}

// save issues a certificate for name. It writes the certificate, its key and the CA's certificate into
// dir, under the file names that weft-central and weftd expect. The certificate of a weft-central
// server also lists its IP addresses.
func (a *authority) save(dir, name string, role pki.Role, addresses ...string) {
	key, csr, err := pki.NewKey(addresses...)
	lab.Check(err)
	der := lab.Must(a.ca.Sign(csr, name, role, pki.DefaultLife))
	lab.Check(pki.FilesIn(dir).Save(der, key, a.ca.DER()))
}

// saveCentral writes the certificate of a weft-central server and the CA's certificate and key into a
// directory.
func (a *authority) saveCentral(dir, name, address string) store.TLSFiles {
	f := pki.FilesIn(dir)
	a.save(dir, name, pki.Central, address)
	lab.Check(a.ca.Save(dir))
	return store.TLSFiles{Certificate: f.Certificate, Key: f.Key, CA: filepath.Join(dir, "ca.pem")}
}
