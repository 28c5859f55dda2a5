// SPDX-License-Identifier: Apache-2.0

// Package pki manages the certificates of a fleet. It has the certificate authority
// (CA), roles, tokens for enrolment, and the TLS settings of servers and clients.
//
// A certificate's common name is the name of its holder, and its organizational unit
// is the role. Connections use TLS 1.3, and both ends show a certificate of the
// fleet's CA. Only a client that enrols has no certificate yet. Files with keys have
// the mode 0600, and keys are never logged.
package pki

import (
	"crypto/x509"
	"fmt"
	"slices"
)

// Role says what the holder of a certificate may do.
type Role string

// Roles of certificates.
const (
	// a weft-central server, which may call other centrals and be a member of etcd
	Central Role = "central"
	Host    Role = "host"   // a weftd, which may use the hub
	Admin   Role = "admin"  // a person who may do everything
	Reader  Role = "reader" // a person who may read but change nothing
)

// ParseRole returns the role with this name.
func ParseRole(s string) (Role, error) {
	if r := Role(s); slices.Contains([]Role{Central, Host, Admin, Reader}, r) {
		return r, nil
	}
	return "", fmt.Errorf("%q is no role; expected central, host, admin or reader", s)
}

// Identity returns the name and the role in a certificate, which the caller has verified.
func Identity(c *x509.Certificate) (name string, role Role, err error) {
	for _, unit := range c.Subject.OrganizationalUnit {
		if role, err = ParseRole(unit); err == nil && c.Subject.CommonName != "" {
			return c.Subject.CommonName, role, nil
		}
	}
	return "", "", fmt.Errorf("the certificate of %q has no role; its organizational unit must be central, host, admin or reader", c.Subject.CommonName)
}
