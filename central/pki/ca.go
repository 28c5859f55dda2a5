// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	// caLife is the life of a CA's certificate.
	caLife = 10 * 365 * 24 * time.Hour
	// DefaultLife is the life of other certificates. Their holders renew them at two
	// thirds of it.
	DefaultLife = 90 * 24 * time.Hour
	// backdate lets certificates be used on machines whose clocks are late.
	backdate = time.Hour
	// CentralName is a DNS name that certificates of the role central have. Members of
	// etcd demand it of each other.
	CentralName = "central.weft"
	// MaxCSR bounds a request for a certificate, bytes.
	MaxCSR = 16 << 10
	// maxNames bounds the addresses in one certificate.
	maxNames = 16
)

// CA signs certificates.
type CA struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// NewCA makes a CA with a new key.
func NewCA(name string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return newCA(der, key)
}

func newCA(der []byte, key crypto.Signer) (*CA, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("the CA's certificate: %w", err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("the certificate of %q is no CA's; expected one with basic constraint CA", cert.Subject.CommonName)
	}
	if p, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !p.Equal(cert.PublicKey) {
		return nil, errors.New("the CA's key is not its certificate's; give the pair")
	}
	return &CA{cert, key}, nil
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		panic(err) // crypto/rand does not fail
	}
	return n
}

// LoadCA reads a CA from PEM files: that of NewCA, or the site's own.
func LoadCA(certFile, keyFile string) (*CA, error) {
	cert, err := readPEM(certFile, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, err
	}
	return newCA(cert, key)
}

// ParseCA reads a CA from DER: the certificate, and the key in PKCS #8.
func ParseCA(cert, key []byte) (*CA, error) {
	parsed, err := parseKey(key)
	if err != nil {
		return nil, err
	}
	return newCA(cert, parsed)
}

// Save writes ca.pem and ca-key.pem.
func (ca *CA) Save(dir string) error {
	key, err := ca.Key()
	if err != nil {
		return err
	}
	if err := writeSecret(filepath.Join(dir, "ca-key.pem"), encodePEM("PRIVATE KEY", key)); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, "ca.pem"), encodePEM("CERTIFICATE", ca.cert.Raw), 0o644)
}

// DER returns the CA's certificate.
func (ca *CA) DER() []byte { return ca.cert.Raw }

// Key returns the CA's key in PKCS #8. It is secret.
func (ca *CA) Key() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(ca.key) }

// Digest is the SHA-256 of the CA's certificate, which tokens contain.
func (ca *CA) Digest() [sha256.Size]byte { return sha256.Sum256(ca.cert.Raw) }

// Sign makes a certificate for the key of a PKCS #10 request in DER. Name and role are
// the CA's decision. The request's IP addresses and DNS names are taken over for the
// role central only: nobody dials the others.
func (ca *CA) Sign(csr []byte, name string, role Role, life time.Duration) ([]byte, error) {
	if len(csr) > MaxCSR {
		return nil, fmt.Errorf("the request for a certificate has %d bytes; expected at most %d", len(csr), MaxCSR)
	}
	r, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("the request for a certificate is not PKCS #10: %w", err)
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request for a certificate is not signed by its own key: %w", err)
	}
	if _, err := ParseRole(string(role)); err != nil {
		return nil, err
	}
	if name == "" || len(name) > 64 {
		return nil, fmt.Errorf("the name %.80q has %d characters; expected 1 to 64", name, len(name))
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name, OrganizationalUnit: []string{string(role)}},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	if role == Central {
		if len(r.IPAddresses)+len(r.DNSNames) > maxNames {
			return nil, fmt.Errorf("the request has more than %d addresses; give fewer", maxNames)
		}
		template.IPAddresses = r.IPAddresses
		template.DNSNames = append([]string{CentralName}, r.DNSNames...)
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return x509.CreateCertificate(rand.Reader, template, ca.cert, r.PublicKey, ca.key)
}

// NewKey makes a key and a request for a certificate that others reach at the addresses,
// which are IP addresses or DNS names.
func NewKey(addresses ...string) (key crypto.Signer, csr []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.CertificateRequest{}
	for _, a := range addresses {
		if ip := net.ParseIP(a); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, a)
		}
	}
	csr, err = x509.CreateCertificateRequest(rand.Reader, template, k)
	return k, csr, err
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func readPEM(file, kind string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == kind {
			return block.Bytes, nil
		}
	}
	return nil, fmt.Errorf("%s has no PEM block %q", file, kind)
}

func readKey(file string) (crypto.Signer, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s has no PEM block of a private key", file)
	}
	key, err := parseKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return key, nil
}

// parseKey takes PKCS #8, SEC 1 and PKCS #1, which sites' own tools write.
func parseKey(der []byte) (crypto.Signer, error) {
	if k, err := x509.ParsePKCS8PrivateKey(der); err == nil {
		if s, ok := k.(crypto.Signer); ok {
			return s, nil
		}
	}
	if k, err := x509.ParseECPrivateKey(der); err == nil {
		return k, nil
	}
	if k, err := x509.ParsePKCS1PrivateKey(der); err == nil {
		return k, nil
	}
	return nil, errors.New("the private key is in no known form; expected PKCS #8")
}

// writeFile replaces a file at once, so that a reader sees the old or the new one.
func writeFile(file string, text []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, text) {
		return os.Chmod(file, mode)
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

func writeSecret(file string, text []byte) error { return writeFile(file, text, 0o600) }
