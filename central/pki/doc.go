// SPDX-License-Identifier: Apache-2.0

// Package pki has the certificates of a fleet: the certificate authority, roles,
// invitations, and TLS settings for both ends of a connection.
//
// A certificate's common name is the name of its holder, and its organizational unit is
// the role. Every connection is TLS 1.3 and both ends show certificates of one CA; only
// enrolment goes without the client's. Keys are files of mode 0600 and are never logged.
package pki

import (
	"crypto/x509"
	"fmt"
	"slices"
)

// Role is what the holder of a certificate may do.
type Role string

// The roles.
const (
	Central Role = "central" // a weft-central: everything, and the members of etcd
	Host    Role = "host"    // a weftd: the hub
	Admin   Role = "admin"   // a person: everything
	Reader  Role = "reader"  // a person: what changes nothing
)

// ParseRole checks a role's name.
func ParseRole(s string) (Role, error) {
	if r := Role(s); slices.Contains([]Role{Central, Host, Admin, Reader}, r) {
		return r, nil
	}
	return "", fmt.Errorf("%q is no role; expected central, host, admin or reader", s)
}

// Identity returns name and role of a verified certificate.
func Identity(c *x509.Certificate) (name string, role Role, err error) {
	for _, unit := range c.Subject.OrganizationalUnit {
		if role, err = ParseRole(unit); err == nil && c.Subject.CommonName != "" {
			return c.Subject.CommonName, role, nil
		}
	}
	return "", "", fmt.Errorf("the certificate of %q has no role; its organizational unit must be central, host, admin or reader", c.Subject.CommonName)
}
