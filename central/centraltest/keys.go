// SPDX-License-Identifier: Apache-2.0

package centraltest

import (
	"testing"
	"time"

	"weft/central/pki"
)

// Keys makes a key and a certificate, saves both in the directory dir, and loads them
// from there. addresses are the IP addresses in a central's certificate.
func Keys(t testing.TB, ca *pki.CA, dir, name string, role pki.Role, life time.Duration, addresses ...string) *pki.Keys {
	t.Helper()
	key, csr, err := pki.NewKey(addresses...)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Sign(csr, name, role, life)
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.FilesIn(dir).Save(cert, key, ca.DER()); err != nil {
		t.Fatal(err)
	}
	keys, err := pki.Load(pki.FilesIn(dir))
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
