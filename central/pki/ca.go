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

	"weft/internal/atomicfile"
)

const (
	// caLife is how long a CA's certificate is valid.
	caLife = 10 * 365 * 24 * time.Hour
	// DefaultLife is how long other certificates are valid. Their holders renew them
	// after two thirds of this time.
	DefaultLife = 90 * 24 * time.Hour
	// backdate is the time by which the validity of a certificate begins before the certificate is
	// issued. So machines whose clocks are late accept it.
	backdate = time.Hour
	// CentralName is a DNS name in every certificate of the role central. The etcd members of a fleet
	// accept connections only from certificates with this name.
	CentralName = "central.weft"
	// maxCSR is the largest size of a certificate signing request in bytes.
	maxCSR = 16 << 10
	// maxNames is the largest number of IP addresses and DNS names in a certificate.
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

// LoadCA reads a CA from PEM files that CA.Save or the site's own tools have written.
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

// ParseCA returns a CA. cert is its certificate in DER, key its private key in PKCS #8.
func ParseCA(cert, key []byte) (*CA, error) {
	parsed, err := parseKey(key)
	if err != nil {
		return nil, err
	}
	return newCA(cert, parsed)
}

// Save writes the certificate to ca.pem and the key to ca-key.pem in the directory dir.
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

// DER returns the CA's certificate in DER.
func (ca *CA) DER() []byte { return ca.cert.Raw }

// Key returns the CA's private key in PKCS #8.
func (ca *CA) Key() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(ca.key) }

// Digest returns the SHA-256 digest of the CA's certificate, which every token contains.
func (ca *CA) Digest() [sha256.Size]byte { return sha256.Sum256(ca.cert.Raw) }

// Sign returns a certificate in DER for the public key in csr, a PKCS #10 request. The name and the
// role come from the caller, never from the request. A certificate of the role central also gets the
// IP addresses and DNS names of the request. Nobody connects to the holders of other roles, so their
// certificates have none.
func (ca *CA) Sign(csr []byte, name string, role Role, life time.Duration) ([]byte, error) {
	return ca.sign(csr, name, role, time.Now().Add(-backdate), life)
}

// Renew returns a certificate with the name and the role of an old certificate. It is valid from the
// same time on as the old one: other machines then accept it even if this machine's clock is ahead.
func (ca *CA) Renew(csr []byte, old *x509.Certificate, life time.Duration) ([]byte, error) {
	name, role, err := Identity(old)
	if err != nil {
		return nil, err
	}
	since := time.Now().Add(-backdate)
	if old.NotBefore.Before(since) {
		since = old.NotBefore
	}
	return ca.sign(csr, name, role, since, life)
}

// RevokedBefore returns the time to store in a revocation that is made now. The revocation refuses
// certificates whose validity begins before this time. signs is true if CA.Sign issues the
// certificates: their validity begins an hour (backdate) before they are issued.
func RevokedBefore(now time.Time, signs bool) time.Time {
	if signs {
		now = now.Add(-backdate)
	}
	return now.Truncate(time.Second).Add(time.Second) // certificates have whole seconds
}

func (ca *CA) sign(csr []byte, name string, role Role, since time.Time, life time.Duration) ([]byte, error) {
	if len(csr) > maxCSR {
		return nil, fmt.Errorf("the request for a certificate has %d bytes; expected at most %d", len(csr), maxCSR)
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
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: name, OrganizationalUnit: []string{string(role)}},
		NotBefore: since, NotAfter: time.Now().Add(life),
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

// NewKey returns a new private key and a certificate signing request for it in DER. addresses are the
// IP addresses or DNS names at which others reach the holder.
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

// parseKey parses a private key in PKCS #8, SEC 1 or PKCS #1, because the tools of sites write all of
// these formats.
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

// writeFile replaces a file atomically, unless the file already has this content.
func writeFile(file string, text []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(file); err == nil && bytes.Equal(old, text) {
		// chmod fails if the file belongs to another user. So it is left out if the mode is right
		// already.
		if info, err := os.Stat(file); err == nil && info.Mode().Perm() == mode {
			return nil
		}
		return os.Chmod(file, mode)
	}
	return atomicfile.WriteForOwner(file, mode, text)
}

func writeSecret(file string, text []byte) error { return writeFile(file, text, 0o600) }
